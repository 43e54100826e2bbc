import pytest

from orchestrator.models.quotes import QuoteProblem, Sources, parse, render, render_value

SOURCES = Sources(
    steps={1: ["DROP alpha\nDROP beta"], 2: ["AA 12\nDL 7\nUA 30", '{"stdout": "x: 1\\ny: 2"}']},
    last=2,
    session=["from an earlier turn", "DROP alpha\nDROP beta"],
    prompt="make it blue",
)


def filled(text: str) -> str:
    return render(parse(text), SOURCES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain {x} } text", "plain {x} } text"),
        (r"<{{ find: '(\w+) 7' }}>", "<DL>"),
        (r'<{{ find: "(\\w+) 7" }}>', "<DL>"),
        (r"{{ find: 'DROP (\w+)', in: step 1 }}", "alpha"),
        (r"{{ find: 'DROP (\w+)', in: step 1, nth: -1 }}", "beta"),
        (r"{{ find: 'DROP (\w+)', in: all, group: 0 }}", "DROP alpha"),
        (r"{{ find: '(?P<who>\w+) 30', group: who }}", "UA"),
        (r"{{ find: 'AA \d+' }}", "AA 12"),
        (r"{{ find: 'an \w+ turn', in: session }}", "an earlier turn"),
        (r"{{ find: '\w+$', in: prompt }}", "blue"),
        (r"{{ find: '^y: (\d)' }}", "2"),
        (r"{{ find: '[{]\W+(\w+)' }} }}", "stdout }}"),
        ("{{ literal: '{{' }} x }}", "{{ x }}"),
        (
            r"{{ each: '^(\w\w) (\d+)', format: '| {n} | {1} | {2} |', limit: 2 }}",
            "| 1 | AA | 12 |\n| 2 | DL | 7 |",
        ),
        (r"{{ each: '^(\w\w) \d', join: ', ', skip: 1 }}", "DL, UA"),
        (r"{{ each: 'nothing', least: 0 }}", ""),
    ],
)
def test_a_quote_takes_words_out_of_outputs(text, expected):
    assert filled(text) == expected


@pytest.mark.timeout(20)
def test_no_pattern_keeps_the_service_busy():
    sources = Sources(steps={1: ["a" * 1_000_000]}, last=1, session=[], prompt="")
    with pytest.raises(QuoteProblem, match="matches 0 times"):
        render(parse("{{ find: '(a+)+$b' }}"), sources)


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\\1", "((a{1000}){1000}){1000}", "(?P<a>x"])
def test_a_pattern_that_cannot_be_searched_in_bounded_time_is_refused(pattern):
    with pytest.raises(QuoteProblem, match="is no regular expression here"):
        parse(f'{{{{ find: "{pattern}" }}}}')


def test_half_a_character_in_an_output_matches_nothing_and_harms_nothing():
    sources = Sources(steps={1: ['{"a": "x\\ud800 7"}']}, last=1, session=[], prompt="")
    assert render(parse(r"{{ find: 'x. (\d)' }}"), sources) == "7"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r"{{ find: 'nope' }}", r"find 'nope' in last matches 0 times, number 0 is wanted"),
        (r"{{ find: 'DROP', in: step 1, nth: 2 }}", "in step 1 matches 2 times"),
        (r"{{ each: 'DROP', in: step 1, least: 3 }}", "at least 3 is wanted"),
    ],
)
def test_a_quote_that_matches_too_little_says_what_it_looked_for(text, problem):
    with pytest.raises(QuoteProblem, match=problem):
        filled(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ find: 'x'", "without its"),
        ("{{ seek: 'x' }}", "none of find, each, literal"),
        ("{{ find: 'x', format: 'y' }}", "find knows no format"),
        ("{{ find: '(x' }}", "no regular expression"),
        ("{{ find: '' }}", "empty"),
        ("{{ find: 3 }}", "must be text"),
        ("{{ find: 'x', nth: one }}", "nth: 'one' must be a whole number"),
        ("{{ find: 'x', group: 2 }}", "no group 2"),
        ("{{ find: 'x', group: who }}", "no group 'who'"),
        ("{{ find: 'x', in: step 0 }}", "in: 'step 0' is none of"),
        ("{{ find: 'x', as: date }}", "none of text, number, json"),
        ("{{ each: '(x)', format: '{2}' }}", "no group 2"),
        ("{{ each: 'x', limit: 2, least: 3 }}", "cannot both be kept"),
        ('{{ find: "\\w" }}', "in double quotes a backslash is written twice"),
    ],
)
def test_a_quote_that_cannot_be_read_says_why(text, problem):
    with pytest.raises(QuoteProblem, match=problem):
        parse(text)


def test_a_quote_alone_can_become_a_number_or_json():
    number = parse(r"{{ find: 'DL (\d)', as: number }}")
    assert render_value(number, SOURCES) == 7
    document = parse(r"{{ find: '^\{.*\}$', as: json }}")
    assert render_value(document, SOURCES) == {"stdout": "x: 1\ny: 2"}
    with pytest.raises(QuoteProblem, match="is no number"):
        render_value(parse(r"{{ find: 'DL', as: number }}"), SOURCES)
