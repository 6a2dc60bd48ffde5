"""Inference servers on loopback, simulated: four kinds, and what real ones do wrong.

What they "decode" is a plain function of the prompt's ids, so a test knows every completion without
the code it tests. Replies have the fields that the real servers were seen to send. Imports nothing
of draftlab.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EOS = 7
NOT_FOUND = (404, {"error": "not found"})


def completion_of(prompt_ids: list[int], limit: int, draw: int = 0) -> tuple[list[int], bool]:
    """Token ids for a prompt, and whether they end in EOS; 3 to 12 tokens long when not cut.

    `draw` is the seed of a sampled one.
    """
    seed = draw + sum((i + 1) * token for i, token in enumerate(prompt_ids))
    length = 3 + seed % 9
    ids = [100 + (seed * 31 + i * 17) % 900 for i in range(length)] + [EOS]
    return ids[:limit], len(ids) <= limit


def chances_of(ids: list[int], count: int) -> list[list[tuple[int, float]]]:
    """At each place the `count` most probable tokens, with log-probabilities.

    The token itself comes first, then those whose ids follow it, each 0.05 less.
    """
    return [[(token + k, -0.5 - 0.05 * k) for k in range(count)] for token in ids]


class Broken(Exception):
    """Begin an answer and never end it."""

    num_drips = 0
    """Bytes that still come, one now and then, before the connection is closed."""


class Cut(Broken):
    """Close the connection in the middle of the answer."""


class Drip(Broken):
    """Send a byte now and then."""

    num_drips = 60


class FakeServer:
    """One server; `post` maps (path, body) to (status, reply), `fault` may step in before it."""

    def __init__(self, get: dict[str, dict], post: Callable) -> None:
        self.get = get
        self.post = post
        self.fault: Callable[[int, dict], tuple | None] = lambda number, body: None
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = ""

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Every prompt that was asked for more than one token (one token: a probe)."""
        asked = [body for body in self.bodies if limit_of(body) > 1]
        return [tuple(prompt_of(body)) for body in asked]

    def answer(self, path: str, body: dict) -> tuple:
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.fault(number, body) or self.post(path, body)
        finally:
            with self.lock:
                self.at_once -= 1


def limit_of(body: dict) -> int:
    sampling = body.get("sampling_params", body)
    names = ("max_new_tokens", "max_tokens", "n_predict")
    return next(sampling[name] for name in names if name in sampling)


def prompt_of(body: dict) -> list[int]:
    return body["input_ids"] if "input_ids" in body else body.get("prompt", [])


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that go away in the middle are part of the tests."""


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for a delayed ACK

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send(*(200, server.get[self.path]) if self.path in server.get else NOT_FOUND)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.keys.append(self.headers.get("Authorization"))
            try:
                self.send(*server.answer(self.path, body))
            except Broken as broken:
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"output_ids": [1, 2')
                for _ in range(broken.num_drips):
                    self.wfile.write(b" ")
                    time.sleep(0.05)

        def send(self, status, reply, headers=()):
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextmanager
def running(server: FakeServer):
    """Serve on a free port until the body ends."""
    http = _Http(("127.0.0.1", 0), _handler(server))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def sglang(*, trims=False, info="/model_info") -> FakeServer:
    def post(path, body):
        if path != "/generate":
            return NOT_FOUND
        sampling = body["sampling_params"]
        draw = sampling.get("sampling_seed", 0)
        ids, whole = completion_of(body["input_ids"], sampling["max_new_tokens"], draw)
        finish = {"type": "stop", "matched": EOS} if whole else {"type": "length", "length": 0}
        meta = {
            "id": "x",
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
        }
        if body.get("return_logprob"):
            top = chances_of(ids, body["top_logprobs_num"])
            meta["output_token_logprobs"] = [[at[0][1], at[0][0], None] for at in top]
            meta["output_top_logprobs"] = [[[lp, token, None] for token, lp in at] for at in top]
        sent = ids[:-1] if trims and whole else ids
        return 200, {"text": "?", "output_ids": sent, "meta_info": meta}

    models = {"object": "list", "data": [{"id": "tiny", "owned_by": "sglang"}]}
    get = {
        info: {"model_path": "/models/tiny", "served_model_name": "tiny"},
        "/server_info": {"version": "0.5.23"},
        "/v1/models": models,
    }
    return FakeServer(get, post)


def vllm() -> FakeServer:
    def post(path, body):
        if path != "/v1/completions":
            return NOT_FOUND
        ids, whole = completion_of(body["prompt"], body["max_tokens"], body.get("seed", 0))
        choice = {
            "index": 0,
            "text": "?",
            "finish_reason": "stop" if whole else "length",
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_token_ids": body["prompt"],
            "logprobs": None,
        }
        if body.get("logprobs"):
            name = "token_id:{}" if body.get("return_tokens_as_token_ids") else "text of {}"
            top = chances_of(ids, body["logprobs"])
            choice["logprobs"] = {
                "text_offset": [0] * len(ids),
                "tokens": [name.format(token) for token in ids],
                "token_logprobs": [at[0][1] for at in top],
                "top_logprobs": [{name.format(token): lp for token, lp in at} for at in top],
            }
        return 200, {"object": "text_completion", "choices": [choice], "metrics": None}

    models = {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm", "root": "/m"}]}
    return FakeServer({"/v1/models": models, "/version": {"version": "0.32.0"}}, post)


def llama() -> FakeServer:
    def post(path, body):
        if path != "/completion":
            return NOT_FOUND
        ids, whole = completion_of(body["prompt"], body["n_predict"], body.get("seed", 0))
        places = [
            {
                "id": at[0][0],
                "logprob": at[0][1],
                "token": "?",
                "bytes": [63],
                "top_logprobs": [{"id": token, "token": "?", "logprob": lp} for token, lp in at],
            }
            for at in chances_of(ids, body.get("n_probs", 0))
            if at
        ]
        known = {"completion_probabilities": places} if places else {}
        return 200, {
            "content": "?",
            "tokens": ids if body.get("return_tokens") else [],
            "stop": True,
            "stop_type": "eos" if whole else "limit",
            "tokens_evaluated": len(body["prompt"]),
            "truncated": False,
            **known,
        }

    props = {"default_generation_settings": {}, "model_path": "/m/tiny", "build_info": "b11434"}
    models = {"object": "list", "data": [{"id": "tiny", "owned_by": "llamacpp"}]}
    return FakeServer({"/props": props, "/v1/models": models}, post)


TEXT_FIELDS = {
    "model", "max_tokens", "temperature", "top_p", "seed", "messages", "prompt",
    "chat_template_kwargs",
}  # fmt: skip


def strict_text(say: Callable[[dict], dict]) -> FakeServer:
    """Refuses what OpenAI's API does not have; `say` gives message, finish reason and usage."""

    def post(path, body):
        unknown = set(body) - TEXT_FIELDS
        if unknown:
            return 422, {"detail": f"Unexpected fields in the request: {unknown}"}
        if not isinstance(body.get("prompt", ""), str):
            return 400, {"detail": "prompt must be a string."}
        said = {"finish_reason": "stop", "usage": None, **say(body)}
        choice = {"finish_reason": said["finish_reason"]}
        if path == "/v1/chat/completions":
            choice["message"] = {"role": "assistant", **said["message"]}
        else:
            choice["text"] = said["message"]["content"]
        return 200, {"choices": [choice], "usage": said["usage"]}

    models = {"object": "list", "data": [{"id": "/models/tiny", "owned_by": "me"}]}
    return FakeServer({"/v1/models": models}, post)


def slowly(seconds: float) -> Callable:
    """A fault that only takes time."""

    def fault(number, body):
        time.sleep(seconds)

    return fault


def has_company(server: FakeServer, number: int, *, wait_seconds: float = 0.4) -> bool:
    """Whether another request is in flight beside this one, now or within a short wait."""
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        if server.at_once > 1 or len(server.bodies) > number + 1:
            return True
        time.sleep(0.001)
    return False
