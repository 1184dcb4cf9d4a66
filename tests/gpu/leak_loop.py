#!/usr/bin/env python3
"""20,000 requests of random lengths, one in five cancelled: memory must end where it began.

usage: leak_loop.py TOKENLOOM [--requests N] [--port P] [--device cuda]

Starts the server with random weights in SmolLM2-135M's shape, warms it up, then compares the card's used memory and the
server's resident memory before and after. Standard library only. Exit status 1 when either grew beyond its bound.
"""
import argparse, asyncio, json, os, random, re, subprocess, sys, tempfile, time

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "vocab_size": 49152,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 2,
}
CONCURRENCY = 96
CANCELLED = 0.2
# The driver's own pools move by a few MiB; allocators keep what a burst needed.
DEVICE_GROWTH_MIB_MAX = 16
HOST_GROWTH_MIB_MAX = 64


def device_mib():
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return int(text.stdout.split()[0]) if text.returncode == 0 and text.stdout.strip() else 0


def host_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) // 1024


async def request(port, model, rng, counts):
    tokens = rng.randrange(1, 65)
    body = json.dumps(dict(model=model, prompt=[rng.randrange(3, 49000) for _ in range(rng.randrange(1, 400))], max_tokens=tokens,
                           temperature=rng.choice([0, 0.8]), ignore_eos=True, stream=True, n=1)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    cancel_after = rng.randrange(0, tokens) if rng.random() < CANCELLED else None
    events, status = 0, b""
    try:
        status = await reader.readline()
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                events += 1
                if b'"error"' in line:
                    raise RuntimeError(line.decode())
            if cancel_after is not None and events >= cancel_after:
                counts["cancelled"] += 1
                return
        if b" 200 " not in status:
            raise RuntimeError(status.decode())
        counts["whole"] += 1
    finally:
        writer.close()


async def load(port, model, total, seed):
    rng = random.Random(seed)
    counts = {"whole": 0, "cancelled": 0}
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one():
        async with gate:
            await request(port, model, rng, counts)

    await asyncio.gather(*[one() for _ in range(total)])
    return counts


def get(port, path):
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        server = subprocess.Popen([args.server, "serve", folder, "--served-model-name", "m", "--load-format", "dummy", "--device",
                                   args.device, "--port", str(args.port), "--kv-cache-tokens", "100000"])
        try:
            for _ in range(600):
                try:
                    get(args.port, "/v1/models")
                    break
                except OSError:
                    if server.poll() is not None:
                        sys.exit(f"the server ended with {server.returncode}")
                    time.sleep(0.1)
            asyncio.run(load(args.port, "m", min(2000, args.requests), 1))
            time.sleep(1)
            before = device_mib(), host_mib(server.pid)
            started = time.time()
            counts = asyncio.run(load(args.port, "m", args.requests, 2))
            time.sleep(1)
            after = device_mib(), host_mib(server.pid)
        finally:
            server.terminate()
            server.wait(30)
    grown = after[0] - before[0], after[1] - before[1]
    passed = grown[0] <= DEVICE_GROWTH_MIB_MAX and grown[1] <= HOST_GROWTH_MIB_MAX
    print(json.dumps(dict(requests=args.requests, **counts, seconds=round(time.time() - started, 1), device_mib=[before[0], after[0]],
                          host_mib=[before[1], after[1]], passed=passed)))
    sys.exit(0 if passed else 1)


main()
