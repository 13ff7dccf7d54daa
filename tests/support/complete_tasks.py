"""A task with every field of its layout set, once for each layout."""

COMPLETE_TOML = """
schema_version = "1.4"
source = "a-benchmark"
artifacts = ["/app/out.txt", { source = "/app/logs", destination = "logs", exclude = ["*.tmp"], service = "main" }]
multi_step_reward_strategy = "final"

[task]
name = "org/complete"
description = "All of it."
version = "2.1.0"
authors = [{ name = "Ada", email = "ada@example.org" }, "Grace"]
keywords = ["all", "fields"]

[metadata]
difficulty = "hard"
since = 2026-01-31
[metadata.nested]
deep = [1, 2.5, true]

[agent]
timeout_sec = 900
user = "agent"
network_mode = "allowlist"
allowed_hosts = ["example.org"]
prompt_prefix = "Be brief."

[verifier]
type = "test-script"
timeout_sec = 120.5
reward_range = [-1, 2]
user = 0
network_mode = "public"
service = "main"
environment_mode = "separate"
pytest_plugins = ["pytest_asyncio"]
[verifier.env]
TOKEN = "${TOKEN:-none}"
[verifier.environment]
docker_image = "grader:1"
cpus = 2
[[verifier.collect]]
command = "dump"
timeout_sec = 5
user = "root"
[verifier.hardening]
cleanup_conftests = false
[verifier.judge]
model = "judge-1"
rubric_path = "tests/rubric.toml"
input_dir = "/app/out"
input_type = "text"
context = "For context."
[verifier.memory]
expected_skills = ["git"]

[environment]
docker_image = "image:1"
build_timeout_sec = 1200
os = "Linux"
cpus = 1.5
memory_mb = 4096
storage_mb = 20480
gpus = 1
gpu_types = ["H100"]
workdir = "/work"
network_mode = "allowlist"
allowed_hosts = ["pypi.example"]
skills_dir = "/skills"
[environment.env]
PLAIN = "x"
PORT = 8080
DEBUG = true
HOST = "${HOST_NAME}"
[environment.healthcheck]
command = "curl -f localhost"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 0.5
retries = 7
[[environment.mcp_servers]]
name = "tools"
transport = "http"
url = "http://localhost/mcp"
headers = { Authorization = "Bearer x" }
[[environment.mcp_servers]]
name = "local"
transport = "stdio"
command = "serve"
args = ["--stdio"]
env = { A = "b" }
[[environment.setup_commands]]
command = "make data"
timeout_sec = 30
cwd = "/work"
user = "root"
env = { SEED = 1 }

[solution]
timeout_sec = 60
[solution.env]
KEY = "value"
"""

COMPLETE_FRONTMATTER = """\
schema_version: "1.3"
task:
  name: org/complete
  description: All of it.
  version: 1.10
  authors: [{name: Ada}]
  keywords: [all]
metadata: {made: 2026-01-31, level: 3, note: null}
source: a-benchmark
agent: {timeout_sec: 30, user: 1000, prompt_prefix: Be brief.}
verifier:
  timeout_sec: 10
  reward_range: [0, 5]
  sandbox_mode: separate
  sandbox: {image: "grader:1"}
sandbox:
  docker_image: image:1
  cpus: 2
  memory_mb: 1024
  network_mode: no-network
  env: {PORT: 0755, RATIO: 1.10, ON: yes, NAME: "${NAME:-x}", DAY: 2026-01-31}
  setup_commands: [{command: make data}]
oracle: {env: {KEY: value}, timeout_sec: 5}
artifacts: [/app/out.txt, {source: /app/logs, destination: logs}]
multi_step_reward_strategy: mean
reward: {funcs: [{type: forbidden-tools, tools: [rm], weight: 2}], aggregate: {weights: {action: 1}}}
agents:
  roles:
    coder:
      agent: claude
      model: a-model
      reasoning_effort: high
      env: {A: 1}
      timeout_sec: 60
      idle_timeout_sec: 5
      skills_dir: skills
    reviewer: {agent: codex}
scenes:
  - turns: [coder, {role: reviewer, prompt: Look at it.}]
  - name: finish
    roles: [coder]
    skills_dir: skills
user:
  model: scripted
  stop_rule: satisfied-or-5-rounds
  private_facts: {budget: 500}
benchflow:
  prompt: {composition: append, order: [base, role]}
  nudges: {mode: simulated, nudge_budget: 2}
  environment: {manifest: ../env.toml}
"""

COMPLETE_BODY = """\
# A title

## prompt

Build it.

```md
## role:coder
```

## Details

More.

## role:coder

You write code.

## scene:finish

Finish it.

## user-persona

A hurried manager.
"""
