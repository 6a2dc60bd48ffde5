"""What we send to SGLang, put to the decoder that its server decodes with.

The server runs on GPUs only. Its wheel holds the generated decoder of requests and replies
(sglang/api/v1/api_types.py, `make servers`), whose errors are the server's answers with 400.
"""

import importlib.util
import itertools
import json
import sys
from dataclasses import replace

import live
import pytest
import servers
import state_servers

from draftlab.hidden.export import export_request
from draftlab.reference.prompts import Prompt
from draftlab.reference.servers import Asking, request
from draftlab.target.decoding import Decoding

pytestmark = [pytest.mark.server, live.needs(live.SGLANG, "servers")]


@pytest.fixture(scope="module")
def contract():
    """SGLang's own module of types."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(live.SGLANG))  # msgspec lies beside it
        spec = importlib.util.spec_from_file_location("api_types", live.SGLANG / "api_types.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "api_types", module)
        spec.loader.exec_module(module)
        yield module


def sent(asking, ids):
    """A body as it goes over the wire."""
    return json.loads(json.dumps(request(asking, Prompt(input_ids=ids), ids).body))


ASKED = [
    Asking("sglang", "tiny", limit, ignore_eos, switch)
    for limit, ignore_eos, switch in itertools.product(
        (1, 2, 65536), (False, True), ({}, {"enable_thinking": True})
    )
]


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(temperature=1.0),
        Decoding(temperature=0.7, top_p=0.9, seed=3),
        Decoding(temperature=0.6, top_k=20),
    ],
    ids=str,
)
def test_requests_for_samples_and_for_log_probabilities_pass_it(contract, decoding):
    asking = replace(ASKED[0], decoding=decoding, num_alternatives=5)
    asked = request(asking, Prompt(input_ids=(1, 2)), (1, 2), 2**31 - 1)
    body = json.loads(json.dumps(asked.body))
    read = contract.GenerateRequest.from_json_value(body)
    sampling = read.sampling_params

    assert (sampling.temperature, sampling.top_p) == (decoding.temperature, decoding.top_p)
    assert (sampling.top_k, sampling.min_p) == (decoding.top_k or -1, 0.0)
    assert sampling.sampling_seed == 2**31 - 1
    assert (read.return_logprob, read.top_logprobs_num) == (True, 5)
    assert set(body) <= set(read.__struct_fields__)


def test_simulated_log_probabilities_are_such_as_the_contract_has_them(contract):
    asked = {
        "return_logprob": True,
        "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 3},
    }
    _, body = servers.sglang().post("/generate", sent(ASKED[0], (1, 2)) | asked)
    read = contract.GenerateResponse.from_json_value(json.loads(json.dumps(body)))

    assert [entry.token_id for entry in read.meta_info.output_token_logprobs] == body["output_ids"]
    assert [len(place) for place in read.meta_info.output_top_logprobs] == [2, 2, 2]


@pytest.mark.parametrize("asking", ASKED, ids=str)
@pytest.mark.parametrize("length", [1, 300, 200_000])
def test_every_request_passes_the_servers_own_gate(contract, asking, length):
    ids = tuple(n % 151_936 for n in range(length))
    body = sent(asking, ids)
    read = contract.GenerateRequest.from_json_value(body)

    assert tuple(read.input_ids) == ids
    assert read.sampling_params.max_new_tokens == asking.max_new_tokens
    assert read.sampling_params.temperature == 0.0
    assert read.sampling_params.repetition_penalty == 1.0
    assert read.sampling_params.ignore_eos is asking.ignore_eos
    assert (read.return_prompt_token_ids, read.stream) == (True, False)
    assert set(body) <= set(read.__struct_fields__), "the server passes over what it does not know"


@pytest.mark.parametrize("length", [2, 40_000])
def test_requests_for_hidden_states_pass_it_too(contract, length):
    ids = tuple(range(length))
    body = json.loads(json.dumps(export_request("sglang", "tiny", ids).body))
    read = contract.GenerateRequest.from_json_value(body)

    assert tuple(read.input_ids) == ids
    assert (read.return_hidden_states, read.return_logprob) == (True, True)
    assert (read.logprob_start_len, read.top_logprobs_num) == (0, 2)
    assert read.sampling_params.max_new_tokens == 1
    assert set(body) <= set(read.__struct_fields__)


def test_the_simulated_states_are_such_as_the_contract_has_them(contract, small_pair):
    model = state_servers.Model(small_pair.target, (1, 2))
    server = state_servers.sglang(model, nested=False)
    _, body = server.post("/generate", export_request("sglang", "tiny", (3, 4, 5)).body)
    read = contract.GenerateResponse.from_json_value(json.loads(json.dumps(body)))

    assert [len(row) for row in read.meta_info.hidden_states] == [128, 128, 128]
    assert [entry.token_id for entry in read.meta_info.input_token_logprobs] == [3, 4, 5]
    assert len(read.meta_info.input_top_logprobs) == 3


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"max_tokens": 5}, "unknown field `max_tokens`"),
        ({"temperature": "0"}, "invalid type: string"),
        ({"ignore_eos": 1}, "invalid type: integer `1`, expected a boolean"),
    ],
)
def test_the_gate_does_refuse(contract, planted, said):
    body = sent(ASKED[0], (1, 2))
    body["sampling_params"] |= planted
    with pytest.raises(contract.JsonContractError, match=said):
        contract.GenerateRequest.from_json_value(body)


def test_floats_for_token_ids_are_refused(contract):
    with pytest.raises(contract.JsonContractError):
        contract.GenerateRequest.from_json_value(sent(ASKED[0], (1, 2)) | {"input_ids": [1.0, 2.0]})


def test_the_simulated_server_answers_as_the_contract_has_it(contract):
    """tests/servers.py stands in for SGLang in every other test."""
    server = servers.sglang()
    for limit in (3, 64):
        status, body = server.post("/generate", sent(ASKED[0], (1, 2)) | {
            "sampling_params": {"max_new_tokens": limit},
        })  # fmt: skip
        read = contract.GenerateResponse.from_json_value(json.loads(json.dumps(body)))
        assert (status, list(read.output_ids)) == (200, body["output_ids"])
        assert read.meta_info.prompt_tokens == 2
    contract.GetModelInfoResponse.from_json_value(server.get["/model_info"])
