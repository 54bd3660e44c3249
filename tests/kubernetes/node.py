# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes node with its control plane, in a container that runs systemd.

    etcd ◄─ API server ◄─ scheduler, controllers, kubelet ─► containerd ─► pods

The node adapts to the machine that runs the tests: kubelet changes no setting of the whole machine,
and if systemd on that machine uses control groups v1 for the controllers, the node does, too.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.system.container import GROUPS, Container
from tests.system.tree import prepared

NAME = "gpuhost"  # the host name in the container's tree, and so the node's name
ADDRESS = "10.99.0.1"
MANIFESTS = "/etc/kubernetes/manifests" # folder of the manifests of static pods
HERE = "/opt/kubernetes"                # the folder of Kubernetes' programs in the container
IMAGE = "localhost/nvshare:1"

INSTALLED = ("containerd", "runc", "containernetworking-plugins", "iproute2", "openssl")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")

# On hosts with control groups v2: pods need all controllers.
UNIFIED = GROUPS + """
for name in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$name" >/sys/fs/cgroup/cgroup.subtree_control
done
"""
# On hosts with control groups v1: a group for the container in each hierarchy. The container's
# systemd uses all hierarchies, which nspawn mounts read-only and GROUND below makes writable.
LEGACY = """
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0
for name in CONTROLLERS systemd; do
    own=$(awk -F: -v name="$name" '$2 == name || $2 == "name=" name {print $3}' /proc/self/cgroup)
    base=/sys/fs/cgroup/$name${own%/}
    mkdir "$base/nvshare-$$" || exit
    groups="$groups $base/nvshare-$$"
    [ "$name" = cpuset ] || continue
    for what in cpus mems; do cat "$base/cpuset.$what" >"$base/nvshare-$$/cpuset.$what"; done
done
""".replace("CONTROLLERS", " ".join(CONTROLLERS))

# Runs first after each boot. Kubelet needs shared mounts, /dev/kmsg and a default route. Files with
# the values that kubelet would set for the whole machine are mounted over the kernel's settings.
GROUND = """
for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \\
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$(mktemp -p /run) && echo "${pair#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${pair%=*}"
done
for folder in /sys/fs/cgroup/*; do mount -o remount,bind,rw "$folder" 2>/dev/null; done
mount --make-rshared /
ln -sf null /dev/kmsg
ip link set lo up
ip link add node0 type bridge && ip addr add ADDRESS/16 dev node0
ip link set node0 up
ip route replace default dev node0
"""

CDI = "enable_cdi = "                   # the setting for CDI in containerd's configuration
CONTAINERD = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  {CDI}false
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options.SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
"""

NETWORK = {
    "cniVersion": "0.4.0", "name": "pods", "plugins": [{
        "type": "bridge", "bridge": "cni0", "isGateway": True,
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }],
}

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "failCgroupV1": False, "failSwapOn": False, "cgroupDriver": "systemd",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%"},
    "imageGCHighThresholdPercent": 100, "localStorageCapacityIsolation": False,
    "resolvConf": "", "staticPodPath": MANIFESTS,
}

# Options of Kubernetes' programs by program name, in the order in which the programs start.
PKI = "/etc/kubernetes/pki"
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "etcd": (
        "--data-dir=/var/lib/etcd/data", "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ),
    "kube-apiserver": (
        "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=10.0.0.0/24",
        f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}",
        f"--tls-cert-file={PKI}/server.crt", f"--tls-private-key-file={PKI}/server.key",
        f"--client-ca-file={PKI}/ca.crt", "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default",
        f"--service-account-key-file={PKI}/server.key",
        f"--service-account-signing-key-file={PKI}/server.key",
        "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
    ),
    "kube-scheduler": (
        "--kubeconfig=/etc/kubernetes/admin.conf", "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ),
    "kube-controller-manager": (
        "--kubeconfig=/etc/kubernetes/admin.conf", "--leader-elect=false",
        "--bind-address=127.0.0.1", f"--service-account-private-key-file={PKI}/server.key",
        f"--root-ca-file={PKI}/ca.crt",
    ),
    "kubelet": (
        "--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubelet.conf",
        f"--node-ip={ADDRESS}",
    ),
}

UNIT = """
[Unit]
StartLimitIntervalSec=0
After=ground.service containerd.service {after}
Requires=ground.service
[Service]
ExecStart={command}
Restart=always
RestartSec=1s
KillMode=process
LimitNOFILE=1048576
[Install]
WantedBy=multi-user.target
"""


def tree() -> Path:
    return prepared(*INSTALLED)


class Node(Container):
    groups = UNIFIED if Path("/sys/fs/cgroup/cgroup.controllers").exists() else LEGACY

    def __init__(
        self, tree: Path, programs: Mapping[str, Path], runtime: Mapping[str, Path]
    ) -> None:
        # These folders are tmpfs, as containerd cannot make overlays on the container's overlay.
        kept = [f"/var/lib/{name}" for name in ("containerd", "kubelet", "etcd")]
        self.options = " ".join((
            "--capability=all", "--system-call-filter='@keyring bpf perf_event_open'",
            *(f"--bind-ro={program}:{HERE}/{name}" for name, program in programs.items()),
            *(f"--bind-ro={program}:/usr/bin/{name}" for name, program in runtime.items()),
            *(f'--bind="$2"{folder}:{folder}' for folder in kept)))
        self.groups += "".join(f'mkdir -p "$2"{folder}\n' for folder in kept)
        super().__init__(tree)

    def kubectl(self, *command: str, given: str = "", check: bool = True) -> str:
        """Runs kubectl as the cluster's administrator; returns its output."""
        return self.run(
            f"{HERE}/kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", *command, given=given,
            check=check).stdout

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "--output=json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--filename=-", given=json.dumps(listed))

    def story(self) -> str:
        """The journal of the services of the node, for the report of a failure."""
        if not self._booted():
            return super().story()
        units = [f"--unit={name}.service" for name in (*OPTIONS, "containerd", "nvshare-kubelet")]
        journal = self.run("journalctl", "--no-pager", "--lines=80", *units, check=False).stdout
        return super().story() + "\n" + journal

    def lay_ground(self) -> None:
        """Prepares the machine for Kubernetes, and starts containerd with the image."""
        ground = f"#!/bin/sh{GROUND.replace('ADDRESS', ADDRESS)}"
        self.write("/usr/local/sbin/ground", ground, 0o755)
        self.write("/etc/systemd/system/ground.service", (
            "[Unit]\nBefore=containerd.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"
            "ExecStart=/usr/local/sbin/ground\n[Install]\nWantedBy=multi-user.target\n"))
        # A pod's sandbox ignores SIGTERM, and a reboot would wait for the end of the sandbox.
        self.write("/etc/systemd/system.conf.d/stop.conf", "[Manager]\nDefaultTimeoutStopSec=5s\n")
        self.run("systemctl", "daemon-reexec")
        self.write("/etc/containerd/config.toml", CONTAINERD)
        self.write("/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
        self.run("systemctl", "enable", "--now", "--quiet", "ground")
        self.run("systemctl", "restart", "containerd")

    def heed_cdi_devices(self, *, support: bool) -> None:
        said = f"{CDI}{str(support).lower()}"
        self.run("sed", "-i", f"s/{CDI}.*/{said}/", "/etc/containerd/config.toml")
        self.run("systemctl", "restart", "containerd")

    def import_image(self, file: Path) -> None:
        there = f"/var/lib/containerd/{file.name}"
        self.copy(file, there)
        self.run("ctr", "--namespace=k8s.io", "images", "import", there)
        self.run("rm", there)

    def start_kubernetes(self) -> None:
        self._make_certificates()
        for name, subject in (("admin", "/O=system:masters/CN=admin"), (
                "kubelet", f"/O=system:nodes/CN=system:node:{NAME}")):
            self._identity(name, subject)
        self.run("mkdir", "-p", MANIFESTS)
        self.write("/etc/kubernetes/kubelet.yaml", json.dumps(KUBELET))
        after = ""
        for name, options in OPTIONS.items():
            command = " ".join((f"{HERE}/{name}", *options))
            self.write(
                f"/etc/systemd/system/{name}.service", UNIT.format(command=command, after=after))
            after = f"{name}.service"
        self.run("systemctl", "enable", "--now", "--quiet", *OPTIONS)
        self.until(self.is_ready, "the node is ready")
        self.until(lambda: self.kubectl(
            "get", "serviceaccount", "default", check=False), "there are service accounts")

    def is_ready(self) -> bool:
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", NAME, f"--output={ready}", check=False) == "True"

    def _make_certificates(self) -> None:
        self.run("mkdir", "-p", PKI)
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
                      "-subj", "/CN=ca", "-keyout", f"{PKI}/ca.key", "-out", f"{PKI}/ca.crt")
        self._sign("server", "/CN=kube-apiserver", f"subjectAltName=IP:{ADDRESS}")

    def _sign(self, name: str, subject: str, extension: str) -> None:
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
                      "-keyout", f"{PKI}/{name}.key", "-out", f"{PKI}/{name}.csr")
        self.write(f"{PKI}/{name}.ext", f"{extension}\n")
        self._openssl("x509", "-req", "-in", f"{PKI}/{name}.csr", "-CA", f"{PKI}/ca.crt",
                      "-CAkey", f"{PKI}/ca.key", "-CAcreateserial", "-days", "30",
                      "-extfile", f"{PKI}/{name}.ext", "-out", f"{PKI}/{name}.crt")

    def _identity(self, name: str, subject: str) -> None:
        """Writes a certificate and a kubeconfig like kubeadm's, which contains the authority."""
        self._sign(name, subject, "extendedKeyUsage=clientAuth")
        authority = base64.b64encode(self.run("cat", f"{PKI}/ca.crt").stdout.encode()).decode()
        self.write(f"/etc/kubernetes/{name}.conf", json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": f"https://{ADDRESS}:6443", "certificate-authority-data": authority}}],
            "users": [{"name": "it", "user": {
                "client-certificate": f"{PKI}/{name}.crt", "client-key": f"{PKI}/{name}.key"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }), 0o600)

    def _openssl(self, *command: str) -> None:
        self.run("openssl", *command)
