"""The node helper's check of a request: every field hostile, one at a time and all at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged.common import request
from gleaner.agent.privileged.common.request import Refused
from gleaner.agent.privileged.helper import oci_config

GOOD: dict[str, Any] = {
    "do": "create",
    "name": "gleaner-7-1",
    "image": "registry.site:5000/pythia:1",
    "command": ["python3", "-c", "print('ü')"],
    "environment": {"A": "b=c"},
    "cpus": 2,
    "memory_mib": 100,
    "labels": {"org.gleaner.end-s": "1700000000"},
    "restore": False,
    "inputs": False,
    "mounts": ["/cvmfs/atlas.cern.ch", "/data/calib"],
}

HOSTILE: dict[str, list[Any]] = {
    "name": ["", ".", "..", "a/b", "../x", "/x", "a\0b", "a\n", "-x", "a" * 62, "a..b", "ä", None, 7, ["a"], {}],
    "image": ["", "/etc/passwd", "../x", "a b", "a\0", "a\n", "a" * 256, "-v", None, 7, []],
    "command": ["sh", [1], ["a\0b"], [None], ["x"] * 5000, ["y" * 200_000], ["\ud800"], {}, None],
    "environment": [[], {"": "x"}, {"a=b": "x"}, {"a\0": "x"}, {"a": 1}, {"a": "\0"}, {"a": "\udfff"}, "a=b", None],
    "cpus": [0, -1, 1.5, True, "1", None, 10**9, [1], float("nan")],
    "memory_mib": [0, 5, -1, 2.0, True, "64", None, 2**60],
    "labels": [[], {"A": "x"}, {"a/b": "x"}, {"": "x"}, {"a": 1}, {"a": "x" * 257}, {"a": "\0"}, None, {1: "x"}],
    "restore": [0, 1, "yes", None, []],
    "inputs": [0, 1, "/etc", None, []],
    "mounts": [
        None, "/data", {}, [7], [["/data"]], [""], ["/"], ["data"], ["/data/"], ["//data"], ["/data/../root"],
        ["/./data"], ["/data\0"], ["/data\n"], ["/data\x1b[1m"], ["/a b"], ["/a:/b"], ["/a,b"], ["/ä"],
        ["/" + 255 * "a"], ["/data", "/data"], ["/data", "/data/calib"], ["/job"], ["/job/x"], ["/inputs"],
        ["/proc/1/root"], ["/sys"], ["/dev/shm"], ["/etc"], ["/tmp/x"], [f"/data{number}" for number in range(1000)],
    ],
}  # fmt: skip


def test_a_good_request_is_taken_as_it_is() -> None:
    assert request.spec(GOOD)._asdict() == {key: value for key, value in GOOD.items() if key != "do"}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in HOSTILE.items() for value in values])
def test_each_field_is_refused_if_it_is_not_what_it_must_be(field: str, value: object) -> None:
    with pytest.raises(Refused, match=field) as refused:
        request.spec(GOOD | {field: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", [*HOSTILE])
def test_no_field_may_be_missing(field: str) -> None:
    with pytest.raises(Refused, match=f"'{field}' is missing"):
        request.spec({key: value for key, value in GOOD.items() if key != field})


@pytest.mark.parametrize("field", ["privileged", "mount", "uid", "capabilities", "bundle", "path", "x" * 10_000])
def test_no_field_may_be_there_that_is_not_known(field: str) -> None:
    with pytest.raises(Refused, match="no field of this request"):
        request.spec({**GOOD, field: "x"})


SMALL_FILES = ("/folder/resolv.conf", "/folder/hostname", "/folder/hosts")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.slow
@given(field=st.sampled_from([*HOSTILE]), value=json_values)
def test_whatever_is_taken_cannot_loosen_the_container(field: str, value: object) -> None:
    try:
        spec = request.spec(GOOD | {field: value})
    except Refused:
        return
    node = oci_config.Node(uid=4200, gid=4200, cpus=2, cgroup="/gleaner", has_cgroup2=False, counts_swap=True)
    image = oci_config.ImageDefaults(entrypoint=["sh"], command=[], environment=["PATH=/bin"])
    made = oci_config.configuration(spec, node, image, rootfs="/folder/rootfs", folder="/folder")
    process = made["process"]
    assert process["user"] == {"uid": 4200, "gid": 4200}
    assert (process["capabilities"], process["noNewPrivileges"], process["cwd"]) == ({}, True, "/job")
    assert {one["type"] for one in made["linux"]["namespaces"]} == {"mount", "network", "uts", "pid", "ipc"}
    sources = [mount["source"] for mount in made["mounts"] if mount["type"] == "bind"]
    own = ["/folder/job", *(["/folder/inputs"] if spec.inputs else []), *SMALL_FILES]
    assert sources == [f"/folder/mount-{number}" for number in range(len(spec.mounts))] + own
    from_node = [mount for mount in made["mounts"] if mount["destination"] in {*spec.mounts, "/inputs"}]
    assert all({"ro", "nosuid", "nodev", "rprivate"} <= set(mount["options"]) for mount in from_node)
    assert len(from_node) == len(spec.mounts) + spec.inputs
    assert made["root"] == {"path": "/folder/rootfs"}
    assert made["linux"]["cgroupsPath"] == f"/gleaner/{spec.name}"
    assert set(made["annotations"]) <= {"org.gleaner.handshake", "org.gleaner.restore", "org.gleaner.end-s"}
    assert "hooks" not in made
    assert 1 <= made["linux"]["resources"]["cpu"]["quota"] <= 200_000


@given(config=json_values)
def test_an_images_configuration_can_say_no_more_than_what_to_run(config: object) -> None:
    image = oci_config.image({"config": config})
    assert all(isinstance(one, str) for part in image for one in part)


def test_the_agents_variables_come_before_the_images() -> None:
    image = oci_config.ImageDefaults(["python3"], ["-V"], ["PATH=/x", "A=image", "B=image"])
    node = oci_config.Node(uid=1, gid=1, cpus=1, cgroup="/g", has_cgroup2=True, counts_swap=False)
    spec = request.spec(GOOD | {"command": []})
    process = oci_config.configuration(spec, node, image, rootfs="/r", folder="/o")["process"]
    assert process["args"] == ["python3", "-V"]
    assert process["env"] == ["PATH=/x", "HOSTNAME=gleaner", "A=b=c", "B=image"]


def test_the_filter_lets_no_number_of_a_socket_pass_that_only_looks_like_another() -> None:
    """The kernel takes 32 bits of it, the filter compares 64."""
    node = oci_config.Node(uid=1, gid=1, cpus=1, cgroup="/g", has_cgroup2=True, counts_swap=False)
    made = oci_config.configuration(
        request.spec(GOOD), node, oci_config.ImageDefaults(["x"], [], []), rootfs="/r", folder="/o"
    )
    rules = [rule for rule in made["linux"]["seccomp"]["syscalls"] if rule["names"] == ["socket"]]
    families = [rule["args"][0] for rule in rules if len(rule["args"]) == 1]
    denied = {one["value"] for one in families if one["op"] == "SCMP_CMP_EQ"}
    (beyond,) = (one["value"] for one in families if one["op"] == "SCMP_CMP_GE")
    assert set(range(beyond)) - denied == {1, 2, 10, 16}
    assert {rule["action"] for rule in rules} == {"SCMP_ACT_ERRNO"}
