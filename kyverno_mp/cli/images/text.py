"""Print the explanation of an image as text.

Room: cli. Takes: the JSON of command. Gives: lines. Next: command.
"""

from collections.abc import Iterator

from kyverno_mp.values.jsonvalue import Json

_WIDTH = 14


def lines(explained: dict[str, Json]) -> Iterator[str]:
    """Yield the lines."""
    yield explained["image"]
    artifacts = explained["found"]
    yield _row("digest", artifacts["digest"] or "unknown")
    for name in ("signatures", "attestations", "referrers"):
        yield _row(name, str(len(artifacts[name])))
        for artifact in artifacts[name]:
            yield f"    {artifact['digest']}{_facts(artifact)}"
    for problem in artifacts["problems"]:
        yield _row("problem", problem)
    for block in explained["blocks"]:
        yield ""
        yield from _block(block)


def _block(block: dict[str, Json]) -> Iterator[str]:
    subject = f"policy {block['policy']}, rule {block['rule']}, block {block['block']}"
    references = ", ".join(block["imageReferences"])
    yield f"{subject}: {'matches' if block['matches'] else 'is not about'} {references}"
    for step in block["steps"]:
        word = "holds" if step["holds"] else "does not hold"
        required = step["asksFor"]
        required = required if required == "signature" else f"attestation {required}"
        yield f"  {required} by {step['attestor']}: {word}"
        for signature in step.get("signatures", ()):
            yield f"    {signature['digest']}: {_verdict(signature)}"
        if not step["holds"] and not step.get("signatures"):
            yield f"    {_verdict(step)}"
    for result in block["results"]:
        yield f"  {result['status']}: {result['message']}"


def _verdict(step: dict[str, Json]) -> str:
    if step["holds"]:
        return "holds"
    return f"fails ({step['check']}): {step['reason']}"


def _facts(artifact: dict[str, Json]) -> str:
    facts = []
    kind = artifact.get("artifactType") or artifact.get("predicateType")
    if kind:
        facts.append(kind)
    certificate = artifact.get("certificate")
    if certificate:
        names = ", ".join(certificate["subjects"]) or "nobody"
        valid = f"{certificate['notBefore']} to {certificate['notAfter']}"
        facts.append(f"certificate of {names}, valid {valid}")
    if "log" in artifact:
        facts.append(
            f"log entry {artifact['log']['index']} of {artifact['log']['time']}"
        )
    if "timestamp" in artifact:
        facts.append("timestamp")
    if "problem" in artifact:
        facts.append(artifact["problem"])
    return f": {'; '.join(facts)}" if facts else ""


def _row(name: str, value: str) -> str:
    return f"  {name:{_WIDTH}}{value}"
