"""Conditions compared with the same conditions in Python."""

from collections.abc import Callable

import pytest

from verl_comprl.experience import Experience, TaskUsage
from verl_comprl.experience.transfer.query_language import FIELDS, parse_where


def usage(uses: int, successes: int, asked: int = 0) -> tuple[TaskUsage, ...]:
    return (TaskUsage(task="t", uses=uses, successes=successes, asked=asked),)


ENTRIES = [
    Experience(
        id="1", title="The Door", content="push", tasks=("minihack", "webshop"), usage=usage(10, 1), created_at=1.5
    ),
    Experience(
        id="2", title="key", content="a door again", tasks=("alfworld",), usage=usage(5, 5), source_success=True
    ),
    Experience(
        id="3", title="", content="x = y < z", tasks=("minihack",), parents=("1", "2"), quarantined="bad record"
    ),
    Experience(
        id="4",
        title="Straße",
        content="x",
        last_trained_step=7,
        source_success=False,
        created_step=-2,
        usage=usage(0, 0, 1),
    ),
]


def picked(*conditions: str) -> str:
    meets = parse_where(conditions)
    return "".join(entry.id for entry in ENTRIES if meets(entry))


@pytest.mark.parametrize(
    ("condition", "python"),
    [
        ("uses>=5", lambda e: e.uses >= 5),
        ("uses>5", lambda e: e.uses > 5),
        ("uses<=5", lambda e: e.uses <= 5),
        ("uses = 5", lambda e: e.uses == 5),
        ("uses!=5", lambda e: e.uses != 5),
        ("uses<1e1", lambda e: e.uses < 10),
        ("created_at=1.5", lambda e: e.created_at == 1.5),
        ("created_step<-1", lambda e: e.created_step < -1),
        ("tasks=minihack", lambda e: "minihack" in e.tasks),
        ("tasks==webshop", lambda e: "webshop" in e.tasks),
        ("tasks!=webshop", lambda e: "webshop" not in e.tasks),
        ("tasks=", lambda e: not e.tasks),
        ("tasks>b", lambda e: any(task > "b" for task in e.tasks)),
        ("tasks~SHOP", lambda e: any("shop" in task for task in e.tasks)),
        ("asked>0", lambda e: e.asked > 0),
        ("posterior_success<0.5", lambda e: e.id in "14"),
        ("title~DOOR", lambda e: "door" in e.title.lower()),
        ("title~STRASSE", lambda e: e.title == "Straße"),
        ("text~door", lambda e: "door" in e.text.lower()),
        ("content=x = y < z", lambda e: e.content == "x = y < z"),
        ("quarantined!=", lambda e: e.quarantined != ""),
        ("parents=1", lambda e: "1" in e.parents),
        ("parents=", lambda e: not e.parents),
        ("parents~2", lambda e: "2" in e.parents),
        ("source_success=true", lambda e: e.source_success is True),
        ("source_success=False", lambda e: e.source_success is False),
    ],
)
def test_a_condition_selects_what_python_selects(condition: str, python: Callable[[Experience], bool]) -> None:
    expected = "".join(entry.id for entry in ENTRIES if python(entry))
    assert picked(condition) == expected != "1234"


def test_all_conditions_must_be_met_and_no_condition_is_always_met() -> None:
    assert picked("tasks=minihack", "uses>1") == "1"
    assert picked() == "1234"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("success_rate<0.2", "1"),
        ("success_rate>=0", "12"),
        ("success_rate=0", ""),
        ("success_rate!=1", "134"),
        ("last_trained_step<100", "4"),
        ("last_trained_step!=7", "123"),
        ("source_success!=true", "134"),
    ],
)
def test_a_missing_value_meets_only_unequal(condition: str, expected: str) -> None:
    assert picked(condition) == expected


def test_every_field_of_an_entry_can_be_named() -> None:
    for field, kind in FIELDS.items():
        value = {"number": "1", "text": "x"}.get(kind, "true")
        parse_where([f"{field}!={value}"])(ENTRIES[2])
    assert set(Experience.model_fields) - {"usage"} < set(FIELDS)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("uses", "is not FIELD OPERATOR VALUE"),
        (">=5", "is not FIELD OPERATOR VALUE"),
        ("uses>=", "needs a number, got ''"),
        ("uses>=five", "needs a number, got 'five'"),
        ("uses=>5", "needs a number, got '>5'"),
        ("uses<nan", "needs a number, got 'nan'"),
        ("success_rate~1", "success_rate is a number"),
        ("source_success=1", "needs true or false, got '1'"),
        ("colour=red", "no field 'colour'; the fields are .*content, .*success_rate"),
        ("__class__=x", "no field '__class__'"),
        ("model_dump=x", "no field 'model_dump'"),
    ],
)
def test_invalid_conditions_are_refused(condition: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_where([condition])
