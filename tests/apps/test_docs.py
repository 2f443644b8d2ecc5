"""The programs on the pages of docs/ run: their files in one directory, their tests by one pytest."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import aiorocket
from aiorocket import errors
from aiorocket.cli.main import cli
from aiorocket.client import exits

ROOT = Path(aiorocket.__file__).parents[1]
DOCS = ROOT / "docs"
TITLED = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


#: Pages with programs -> how many files each has, and how many tests of them pass.
PAGES = {
    "testing": (4, 8), "services": (2, 1),
    "order": (1, 1), "filters": (1, 1), "retries": (1, 1), "transactions": (1, 1),
}  # fmt: skip
#: Pages whose only block of Python is run by a test of its own, here or in ``harness``.
OTHERS = {"index", "settings", "growing", "fuzzing"}


def page_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def blocks(name: str, language: str) -> list[str]:
    """What stands between its fences, without a title or with one."""
    return re.findall(rf"^```{language}(?: title=[^\n]*)?\n(.*?)^```$", page_of(name), re.MULTILINE | re.DOTALL)


def test_every_program_of_a_page_is_run() -> None:
    for page in DOCS.glob("*.md"):
        programs, titled = blocks(page.stem, "python"), TITLED.findall(page.read_text())
        run = page.stem in PAGES
        assert not programs or run or page.stem in OTHERS, page
        assert not run or len(programs) == len(titled), page


def test_pages_run(tmp_path: Path) -> None:
    for page, (count, _) in PAGES.items():
        files = TITLED.findall(page_of(page))
        assert len(files) == count
        for name, text in files:
            assert not (tmp_path / name).exists(), f"two pages have a {name}"
            (tmp_path / name).write_text(text)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin",
            "-p", "anyio.pytest_plugin", "-p", "aiorocket.testing.pytest_plugin",
            "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function",
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{sum(passed for _, passed in PAGES.values())} passed" in done.stdout


def test_every_error_has_its_entry() -> None:
    page = page_of("troubleshooting")
    entries = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(entries) == sorted([*errors.__all__, *exits.__all__[:-1]])
    assert exits.__all__[-1] == "failure_of"


def test_the_first_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = blocks("index", "python")
    exec(compile(program, "index.md", "exec"), {})
    assert capsys.readouterr().out == "{'id': 'o-1', 'amount': 42}\n"


def test_the_page_on_settings_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mq.toml").write_text(blocks("settings", "toml")[0])
    [program] = blocks("settings", "python")
    said: dict[str, Any] = {}
    exec(compile(program, "settings.md", "exec"), said)
    assert said["client"].config.remoting.request_timeout == 2.0 and said["client"].consumer().config.concurrency == 32


def test_the_page_on_fuzzing_runs() -> None:
    [program] = blocks("fuzzing", "python")
    said: dict[str, Any] = {}
    exec(compile(program, "fuzzing.md", "exec"), said)
    [test] = [each for name, each in said.items() if name.startswith("test_")]
    test()


def test_commands_of_the_pages_are_there() -> None:
    """Each with its options; what others are run exists too."""
    seen, context = 0, click.Context(cli)
    for page in DOCS.glob("*.md"):
        for line in "".join(blocks(page.stem, "sh")).splitlines():
            words = line.split("#")[0].split()
            if words[:2] == ["python", "-m"]:
                assert (ROOT / (words[2].replace(".", "/") + ".py")).exists() or (
                    ROOT / words[2].replace(".", "/")
                ).is_dir()
            elif words[:1] == ["python"]:
                assert words[1] == "program.py" or (ROOT / words[1]).exists(), line
            elif words[:1] == ["aiorocket"]:
                command, rest = cli, words[1:]
                while isinstance(command, click.Group):
                    # What is no command of a group is for its run: aiorocket fuzz HOST:PORT.
                    named = command.get_command(context, rest[0]) or command.get_command(context, "run")
                    command, rest = named, rest[1:]
                assert command is not None, line
                known = {option for each in command.params for option in each.opts + each.secondary_opts}
                assert {each.split("=")[0] for each in rest if each.startswith("-")} <= known | {"--help"}, (page, line)
                seen += 1
    assert seen > 1


def test_every_text_of_an_error_is_on_the_page() -> None:
    """The site's own hook reads the sources: nothing that is raised can be missing."""
    hook = runpy.run_path(str(ROOT / ".mkdocs_errors.py"))
    section = hook["on_page_markdown"](page_of("troubleshooting"), page=None)
    texts = hook["found"]()
    assert len(texts) > 400 and {name for name, _, _ in texts} <= {*errors.__all__}
    for sample in ("a message has one tag, without '", "the body has", "is not a writable queue of topic"):
        assert sample in section
    assert hook["PLACE"] not in section


def test_the_reference_has_every_public_name() -> None:
    shown = set(re.findall(r"^::: (\S+)$", page_of("api"), re.MULTILINE))
    missing = []
    for name, home in aiorocket._HOME_OF.items():
        homes = {home, getattr(getattr(aiorocket, name), "__module__", home)}
        if not shown & (homes | {f"{each}.{name}" for each in homes}):
            missing.append(name)
    assert not missing


#: Of rocketmq-client 5.5.0: what its setters set, and what else its producers and consumers can do.
JAVA = """
accessChannel clientCallbackExecutorThreads clientIP decodeDecompressBody decodeReadBody detectInterval detectTimeout
enableHeartbeatChannelEventListener enableStreamRequestType enableTrace heartbeatBrokerInterval instanceName language
maxPageSizeInGetMetadata mqClientApiTimeout namespace namespaceV2 namesrvAddr persistConsumerOffsetInterval
pollNameServerInterval pullTimeDelayMillsWhenException sendLatencyEnable socksProxyConfig startDetectorEnable
traceMsgBatchNum traceTopic unitMode unitName useHeartbeatV2 useTLS vipChannelEnabled
adjustThreadPoolNumsThreshold allocateMessageQueueStrategy awaitTerminationMillisWhenShutdown clientRebalance
consumeConcurrentlyMaxSpan consumeFromWhere consumeMessageBatchMaxSize consumeThreadMax consumeThreadMin consumeTimeout
consumeTimestamp consumerGroup maxReconsumeTimes messageListener messageModel messageQueueListener offsetStore
popBatchNums popInvisibleTime popThresholdForQueue postSubscriptionWhenPull pullBatchSize pullBatchSizeInBytes
pullInterval pullThresholdForQueue pullThresholdForTopic pullThresholdSizeForQueue pullThresholdSizeForTopic
subscription suspendCurrentQueueTimeMillis
autoCommit autoCommitIntervalMillis connectBrokerByUser consumeMaxSpan consumerPullTimeoutMillis
consumerTimeoutMillisWhenSuspend customizedTraceTopic defaultBrokerId enableMsgTrace pollTimeoutMillis pullThreadNums
pullThresholdForAll setSubExpressionForAssign topicMetadataCheckIntervalMillis traceDispatcher
asyncSenderExecutor autoBatch backPressureForAsyncSendNum backPressureForAsyncSendSize callbackExecutor compressLevel
compressMsgBodyOverHowmuch compressType createTopicKey defaultTopicQueueNums enableBackpressureForAsyncMode latencyMax
maxMessageSize notAvailableDuration producerGroup retryAnotherBrokerWhenNotStoreOK retryTimesWhenSendAsyncFailed
retryTimesWhenSendFailed sendLatencyFaultEnable sendMessageWithVIPChannel sendMsgMaxTimeoutPerRequest sendMsgTimeout
topics addRetryResponseCode batchMaxBytes batchMaxDelayMs totalBatchMaxBytes
checkRequestHoldMax checkThreadPoolMaxSize checkThreadPoolMinSize executorService transactionCheckListener
transactionListener
createTopic earliestMsgStoreTime fetchPublishMessageQueues maxOffset minOffset queryMessage recallMessage request
searchOffset sendMessageInTransaction sendOneway shutdown start viewMessage
fetchSubscribeMessageQueues registerConsumeMessageHook registerMessageListener resume sendMessageBack subscribe suspend
unsubscribe updateCorePoolSize
assign assignment commit commitSync committed fetchMessageQueues offsetForTimestamp pause poll
registerTopicMessageQueueChangeListener seek seekToBegin seekToEnd updateNameServerAddress isRunning
SEND_OK FLUSH_DISK_TIMEOUT FLUSH_SLAVE_TIMEOUT SLAVE_NOT_AVAILABLE COMMIT_MESSAGE ROLLBACK_MESSAGE UNKNOW
CONSUME_SUCCESS RECONSUME_LATER SUCCESS ROLLBACK COMMIT SUSPEND_CURRENT_QUEUE_A_MOMENT FOUND NO_NEW_MSG NO_MATCHED_MSG
OFFSET_ILLEGAL POLLING_FULL POLLING_NOT_FOUND NO_EXIST CONSUME_FROM_LAST_OFFSET CONSUME_FROM_FIRST_OFFSET
CONSUME_FROM_TIMESTAMP CLUSTERING BROADCASTING
"""


def test_every_name_of_javas_client_has_its_row() -> None:
    page = page_of("migrating")
    java = page[: page.index("## `rocketmq-client-python`")]
    rows = [line.split(" | ")[0] for line in java.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", " ".join(rows)))))
    assert set(JAVA.split()) <= named, sorted(set(JAVA.split()) - named)


def test_what_is_given_for_other_names_exists() -> None:
    given = "".join(line.partition(" | ")[2] for line in page_of("migrating").splitlines())
    for name, attribute in re.findall(r"`([A-Z]\w+)\.(\w+)`", given):
        home = getattr(aiorocket, name, None)
        if home is not None:
            assert hasattr(home, attribute) or attribute in getattr(home, "__dataclass_fields__", {}), (name, attribute)
