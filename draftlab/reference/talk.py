"""Prompts put to one server: encoded here, asked there, each answer checked.

Prompts are rendered and encoded with the target's own tokenizer and sent as token ids where the
server takes them, so that its template, its thinking mode and its BOS rule cannot differ unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftlab.base.errors import CompletionsError
from draftlab.reference.answers import Answer, answer_of
from draftlab.reference.client import NOT_READY, Patience, ServerClient
from draftlab.reference.completions import ReferenceJob, Server, Thinking
from draftlab.reference.encode import PromptEncoder
from draftlab.reference.prompts import Prompt, PromptSource, prompts_digest
from draftlab.reference.replies import Reply, read_reply
from draftlab.reference.samples import samples_of
from draftlab.reference.servers import Asking, ServerFacts, identify, request
from draftlab.reference.verify import SaidAgain
from draftlab.target.decoding import GREEDY, Decoding
from draftlab.target.facts import TargetFacts
from draftlab.target.tokenizer import TokenizerFiles, tokenizer_digest

MOST_RETRIES = 20
NUM_ALTERNATIVES = 5
"""At each place of a verifying answer: enough for a near tie, and replies stay a few megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """Whom to ask, and how."""

    url: str
    max_new_tokens: int
    ignore_eos: bool = False
    thinking: Thinking = "template"
    concurrency: int = 8
    """Requests in flight at a time."""
    keep_cut_off: bool = False
    """Keep completions that ended at the token limit."""
    verify: int = 0
    """Prompts to ask again, alone and under load, before the reference is written."""
    model: str = ""
    """Which of a server's models; needed where there are several."""
    time_limit_seconds: float = 600.0
    """For one whole answer."""
    retries: int = 4
    """How often one request is repeated at most."""
    first_wait_seconds: float = 0.5
    decoding: Decoding = GREEDY
    source: PromptSource | None = None
    """Where the prompts came from, for the record."""
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_new_tokens", self.max_new_tokens, 2),
            ("concurrency", self.concurrency, 1),
            ("verify", self.verify, 0),
            ("retries", self.retries, 0),
        ):
            if value < least:
                raise CompletionsError(
                    f"{name} is {value}.",
                    mend=f"Pass --{name.replace('_', '-')} {least} or more.",
                )
        if self.retries > MOST_RETRIES:
            raise CompletionsError(
                f"retries is {self.retries}.", mend=f"Pass --retries {MOST_RETRIES} or less."
            )
        if self.verify and not self.decoding.is_greedy:
            raise CompletionsError(
                "--verify asks again and compares, but sampled answers may differ by chance.",
                mend="Leave --verify out; check the server with a greedy reference.",
            )
        if not self.time_limit_seconds > 0:
            raise CompletionsError(
                f"the time limit is {self.time_limit_seconds} s.",
                mend="Pass --time-limit with the seconds that one answer may take.",
            )

    @property
    def patience(self) -> Patience:
        """How long to wait, and how often to try."""
        return Patience(
            time_limit_seconds=self.time_limit_seconds,
            retries=self.retries,
            first_wait_seconds=self.first_wait_seconds,
        )

    @property
    def keeps_cut_off(self) -> bool:
        """Whether rows that ended at the token limit are kept."""
        return self.keep_cut_off or self.ignore_eos


class Talk:
    """The prompts, the completions that are wanted of them, and the server that is asked."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        target_folder: Path,
        settings: CollectSettings,
        client: ServerClient,
    ) -> None:
        self.prompts = prompts
        self.settings = settings
        self.client = client
        self.folder = target_folder
        self.encoder = PromptEncoder(target_folder, settings.thinking, TokenizerFiles)
        self._vocab_size = TargetFacts.from_folder(target_folder).vocab_size
        encoded = [self.encoder.encode(prompt, self._vocab_size) for prompt in prompts]
        self.samples = samples_of(prompts, encoded, settings.decoding)

    @property
    def unit(self) -> str:
        """What is counted."""
        return "prompts" if self.settings.decoding.num_samples == 1 else "samples"

    async def meet(self) -> ServerFacts:
        """Find out what the server is and whether it gives token ids."""
        facts = identify(await self.client.look(), self.settings.model)
        if facts.dialect == "text" and await self._gives_ids(facts):
            facts = replace(facts, dialect="vllm")
        self._met = self._asking(facts, self.settings.max_new_tokens)
        for sample in self.samples:  # what cannot be asked is said before any is
            request(self._met, sample.prompt, sample.prompt_ids, sample.seed)
        return facts

    async def ask(self, number: int) -> Answer:
        """The answer to one of the samples, checked."""
        return (await self._ask(number, self._met))[0]

    async def ask_again(self, number: int) -> SaidAgain:
        """The same once more, with what else the server might have said."""
        answer, reply = await self._ask(
            number, replace(self._met, num_alternatives=NUM_ALTERNATIVES)
        )
        return SaidAgain(answer.completion_ids, reply.alternatives)

    async def _ask(self, number: int, asking: Asking) -> tuple[Answer, Reply]:
        sample = self.samples[number]
        asked = request(asking, sample.prompt, sample.prompt_ids, sample.seed)
        try:
            reply = read_reply(asking.dialect, await self.client.ask(asked))
            answer = answer_of(
                reply,
                sample.prompt_ids,
                self._vocab_size,
                self.settings.max_new_tokens,
                lambda: self.encoder.tokenizer,
            )
        except CompletionsError as error:
            raise type(error)(f"prompt {sample.id!r}: {error}", mend=error.mend) from error
        return answer.model_copy(update={"sample": sample.index}), reply

    def job(self, facts: ServerFacts) -> ReferenceJob:
        """What decides the completions, as far as it can be seen."""
        text = facts.dialect == "text"
        made_by = Server(
            name=facts.name,
            version=facts.version,
            model_id=facts.model_id,
            dialect=facts.dialect,
            ids_from="retokenised" if text else "server",
            tokenizer_digest=tokenizer_digest(self.folder) if text or self.encoder.was_read else "",
        )
        return ReferenceJob(
            prompts_digest=prompts_digest(self.prompts),
            num_prompts=len(self.prompts),
            made_by=made_by,
            max_new_tokens=self.settings.max_new_tokens,
            ignore_eos=self.settings.ignore_eos,
            decoding=self.settings.decoding,
            thinking=self.settings.thinking,
            template_digest=self.encoder.template_digest,
            keep_cut_off=self.settings.keeps_cut_off,
        )

    def _asking(self, facts: ServerFacts, max_new_tokens: int) -> Asking:
        settings = self.settings
        switch = self.encoder.switch
        return Asking(
            facts.dialect,
            facts.model_id,
            max_new_tokens,
            settings.ignore_eos,
            switch,
            settings.decoding,
        )

    async def _gives_ids(self, facts: ServerFacts) -> bool:
        """Whether the server takes token ids and gives them back; one short completion tells.

        A server that is only busy is waited for and then an error: taking it for one that has text
        alone would lower every row to re-tokenised text.
        """
        asking = self._asking(replace(facts, dialect="vllm"), 1)
        first = self.samples[0]
        sent = request(asking, first.prompt, first.prompt_ids, first.seed)
        status, body = await self.client.post(sent)
        if status in NOT_READY:
            self.client.judged(sent, status, body)
        if status != 200:
            return False
        try:
            reply = read_reply("vllm", body)
        except CompletionsError:
            return False
        return reply.prompt_ids in (None, first.prompt_ids)
