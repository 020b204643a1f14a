"""Runs llama.cpp's programs on a GGUF file: llama-bench, and llama-server for its MTP path.

Knows their arguments and answers. Keeps true: the server is stopped with the `with` that started
it; a request never ends early and reuses nothing of the one before.
"""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.scenario import ACCEPTANCE, DRAFTS, GENERATE, PREFIX, THREADS

HOST, PORT = "127.0.0.1", 18733
START_S, REQUEST_S = 120, 600


def run_bench(program: Path, model: Path) -> dict[str, float]:
    """Tokens a second of plain decoding behind PREFIX positions, rows a second of prefill."""
    rows = [*_bench(program, model, "-n", "0", "-p", str(PREFIX))]
    rows += _bench(program, model, "-p", "0", "-n", str(GENERATE), "-d", str(PREFIX))
    speeds = {("decode" if row["n_gen"] else "prefill"): float(row["avg_ts"]) for row in rows}
    assert speeds.keys() == {"decode", "prefill"}
    return speeds


def _bench(program: Path, model: Path, *what: str) -> list[dict[str, Any]]:
    command = [program, "-m", model, "-t", THREADS, "-r", 1, "-o", "json", *what]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Server:
    """llama-server drafting with the model's MTP heads, acceptance as the scenario says."""

    def __init__(self, program: Path, model: Path, log: Path):
        arguments = ["-t", THREADS, "-c", 2048, "-np", 1, "--host", HOST, "--port", PORT]
        drafting = ["--spec-type", "draft-mtp", "--spec-draft-n-max", DRAFTS]
        synthetic = ["--spec-synth-len", ACCEPTANCE]
        command = [program, "-m", model, *arguments, *drafting, *synthetic]
        self._log = log
        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def ask(self, prompt: Sequence[int]) -> dict[str, float]:
        """Tokens a second of decoding.

        The server accepts by chance: 64 tokens take a few steps more or less than the mean. Its
        steps a second times the scenario's mean leave that chance out.
        """
        body = {
            "prompt": list(prompt),
            "n_predict": GENERATE,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        timings = json.loads(self._request("/completion", body))["timings"]
        assert timings["predicted_n"] == GENERATE
        steps = GENERATE - timings["draft_n_accepted"]
        return {"mtp": ACCEPTANCE * steps / (timings["predicted_ms"] / 1000)}

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self._request("/health", None)
            except urllib.error.URLError:
                time.sleep(0.2)
            else:
                return
        said = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"llama-server did not start:\n{said}")

    def _request(self, path: str, body: dict[str, Any] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{HOST}:{PORT}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            return answer.read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
