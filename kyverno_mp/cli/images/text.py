"""Print the explanation of an image as text.

Room: cli. Takes: the JSON of command. Gives: lines. Next: command.
May touch: nothing outside its arguments.
"""

from collections.abc import Iterator

from kyverno_mp.values.jsonvalue import Json

_WIDTH = 14


def lines(explained: dict[str, Json]) -> Iterator[str]:
    """Yield the lines."""
    yield explained["image"]
    found = explained["found"]
    yield _row("digest", found["digest"] or "unknown")
    for name in ("signatures", "attestations", "referrers"):
        yield _row(name, str(len(found[name])))
        for one in found[name]:
            yield f"    {one['digest']}{_facts(one)}"
    for problem in found["problems"]:
        yield _row("problem", problem)
    for block in explained["blocks"]:
        yield ""
        yield from _block(block)


def _block(block: dict[str, Json]) -> Iterator[str]:
    place = f"policy {block['policy']}, rule {block['rule']}, block {block['block']}"
    references = ", ".join(block["imageReferences"])
    yield f"{place}: {'matches' if block['matches'] else 'is not about'} {references}"
    for step in block["steps"]:
        word = "holds" if step["holds"] else "does not hold"
        what = step["asksFor"]
        what = what if what == "signature" else f"attestation {what}"
        yield f"  {what} by {step['attestor']}: {word}"
        for signature in step.get("signatures", ()):
            yield f"    {signature['digest']}: {_verdict(signature)}"
        if not step["holds"] and not step.get("signatures"):
            yield f"    {_verdict(step)}"
    for result in block["results"]:
        yield f"  {result['status']}: {result['message']}"


def _verdict(one: dict[str, Json]) -> str:
    if one["holds"]:
        return "holds"
    return f"fails ({one['check']}): {one['reason']}"


def _facts(one: dict[str, Json]) -> str:
    facts = []
    kind = one.get("artifactType") or one.get("predicateType")
    if kind:
        facts.append(kind)
    certificate = one.get("certificate")
    if certificate:
        names = ", ".join(certificate["subjects"]) or "nobody"
        valid = f"{certificate['notBefore']} to {certificate['notAfter']}"
        facts.append(f"certificate of {names}, valid {valid}")
    if "log" in one:
        facts.append(f"log entry {one['log']['index']} of {one['log']['time']}")
    if "timestamp" in one:
        facts.append("timestamp")
    if "problem" in one:
        facts.append(one["problem"])
    return f": {'; '.join(facts)}" if facts else ""


def _row(name: str, text: str) -> str:
    return f"  {name:{_WIDTH}}{text}"
