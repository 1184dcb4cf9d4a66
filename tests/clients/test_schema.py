"""schemathesis: what `/openapi.json` allows, and what it does not, gets a documented status and never a 5xx."""

import subprocess
from pathlib import Path

EXAMPLES = 25
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_the_document_is_true(request, direct, tmp_path):
    command = Path(request.config.getoption("--bin")) / "schemathesis"
    words = [command, "run", f"{direct.url}/openapi.json", "--checks", CHECKS, "--max-examples", str(EXAMPLES)]
    words += ["--seed", "7", "--workers", "2", "--phases", "examples,coverage,fuzzing", "--request-timeout", "30"]
    words += ["--generation-database", "none", "--no-color"]
    done = subprocess.run([str(word) for word in words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
