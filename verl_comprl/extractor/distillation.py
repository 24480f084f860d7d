"""One distillation, without order and bookkeeping: the entries it is shown, its answer in the bank, and its outcome."""

from collections.abc import Sequence

from verl_comprl.experience import BankConfig, DistillationRequest, ExperienceBank, ParsedAnswer
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.extractor.generation_record import GenerationRecord


def is_usual(entry: Experience, limits: BankConfig) -> bool:
    """Return whether an entry is no longer than a run writes; an imported one could be longer than a prompt."""
    return len(entry.text) <= limits.max_title_chars + 1 + limits.max_content_chars


async def nearest_entries(
    bank: ExperienceBank, request: DistillationRequest, limit: int, limits: BankConfig
) -> list[Experience]:
    """Return at most ``limit`` usual entries close to an episode's goal and outcome, without those that it has read."""
    asked = limit
    while asked:
        nearest = await bank.nearest(
            f"{request.goal}\nOutcome: {'success' if request.outcome.success else 'failure'}",
            asked,
            task=request.task,
            environment=request.environment,
            exclude=request.experience_ids,
        )
        usual = [entry for entry in nearest if is_usual(entry, limits)]
        if len(usual) >= limit or len(nearest) < asked:
            return usual[:limit]
        asked *= 2  # longer ones are nearer
    return []


def listed_ids(request: DistillationRequest, similar: Sequence[Experience]) -> list[str]:
    """Return the ids of the entries that the prompt numbers: what the episode has read, then ``similar`` ones."""
    return [*request.experience_ids, *(entry.id for entry in similar)]


async def apply_answer(
    bank: ExperienceBank,
    request: DistillationRequest,
    listed: Sequence[str],
    answer: ParsedAnswer,
    record: GenerationRecord,
) -> ApplyReport:
    """Carry out an answer's operations, in which ``listed`` are the ids of the entries that the prompt numbered."""
    return await bank.apply(
        answer.operations,
        call_id=record.id,
        listed=listed,
        task=request.task,
        environment=request.environment,
        step=request.step,
        weight_version=record.weight_version,
        source_trajectory=request.id,
        source_success=request.outcome.success,
    )


def outcome_of(answer: ParsedAnswer, report: ApplyReport | None) -> str:
    """Return what has become of an episode: ``written``, ``return`` (into no entry) or ``unreadable``."""
    if not answer.format_ok:
        return "unreadable"
    return "written" if report is not None and report.new_ids else "return"
