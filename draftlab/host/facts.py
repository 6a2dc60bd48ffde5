"""What is recorded about one machine; units are in the names.

The document is `draftlab.host/1`. Sizes of memory and disk are bytes; `MiB` of nvidia-smi and `kB`
of the kernel (which are KiB) are converted where they are read.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import computed_field

from draftlab.base.records import Document, Provenance, Record
from draftlab.drafter.config import DrafterConfig
from draftlab.host.fact import Fact, Known, NotAnswered, known_or
from draftlab.target.facts import TargetFacts


class System(Record):
    """Names, and where the one who asks is at home."""

    kernel: str
    """`Linux`, `Darwin`, ..."""
    kernel_release: str
    machine: str
    """`x86_64`, `aarch64`, ..."""
    hostname: str
    distribution: Fact[str]
    user: str
    home: str
    path: tuple[str, ...]
    """Folders of PATH as a non-interactive shell has it."""


class Memory(Record):
    """Main memory, with the limits of the containers that the probe ran in."""

    total_bytes: int
    available_bytes: int
    """What the kernel says new programs can take, page cache that it would give up included."""
    free_bytes: int
    limit_bytes: Fact[int]
    """The smallest limit among the control groups of the probe and all above them."""
    limit_room_bytes: Fact[int]
    """The least that any of these groups leaves; page cache does not count as used."""
    limited_by: str
    """The group of `limit_bytes`; empty without a limit."""
    swap_total_bytes: int
    swap_free_bytes: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usable_bytes(self) -> int:
        """Total, or the container's limit where that is less."""
        return min(self.total_bytes, known_or(self.limit_bytes, self.total_bytes))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usable_available_bytes(self) -> int:
        """Available, or what the container leaves where that is less."""
        room = known_or(self.limit_room_bytes, self.available_bytes)
        return max(0, min(self.available_bytes, room))


class Inodes(Record):
    """How many files a file system can hold."""

    total: int
    free: int


class Disk(Record):
    """The file system under one exact path."""

    path: str
    """Absolute."""
    exists: bool
    measured_at: str
    """The path itself; for one that is not there, the nearest folder above that is."""
    device: str
    mount_point: str
    kind: Fact[str]
    """`ext4`, `tmpfs`, ..."""
    total_bytes: int
    free_bytes: int
    """Free for this user: without the blocks that are reserved for root."""
    inodes: Fact[Inodes]
    writable: bool
    """By this user, at `measured_at`."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def in_memory(self) -> bool:
        """Whether what is written there takes memory and is gone after a restart."""
        return known_or(self.kind, "") in {"tmpfs", "ramfs"}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def takes_no_files(self) -> bool:
        """Whether no file can be created although bytes may be free."""
        return isinstance(self.inodes, Known) and self.inodes.value.free == 0


class AskedDisk(Record):
    """The answer for one path, under the name it was asked by."""

    asked: str
    disk: Fact[Disk]


class Cpu(Record):
    """Processors and what they can compute with."""

    model: Fact[str]
    sockets: Fact[int]
    cores: Fact[int]
    """Physical cores."""
    logical_cpus: int
    allowed_cpus: Fact[int]
    """Logical CPUs that the probe's process may run on."""
    quota_cpus: Fact[float]
    """CPU time per time that the smallest container limit grants."""
    numa_nodes: int
    max_mhz: Fact[float]
    isa: tuple[str, ...]
    """Those extensions that matter for models, of `avx2`, `avx512_bf16`, `amx_bf16`, `bf16` ...; in
    a machine with unlike cores, those that all have."""
    load_1min: Fact[float]
    """Processes that ran or waited, averaged over the last minute."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usable_cpus(self) -> float:
        """What a program started as the probe was can use at once."""
        allowed = known_or(self.allowed_cpus, self.logical_cpus)
        return min(float(allowed), known_or(self.quota_cpus, float(allowed)))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bf16(self) -> Literal["amx", "avx512", "arm", "emulated"]:
        """How bfloat16 products are computed; emulated ones are far slower than float32."""
        if "amx_bf16" in self.isa:
            return "amx"
        if "avx512_bf16" in self.isa:
            return "avx512"
        return "arm" if "bf16" in self.isa else "emulated"


class GpuMemory(Record):
    """Memory of one GPU."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


class GpuHolder(Record):
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    used_bytes: Fact[int]


class Gpu(Record):
    """One GPU that nvidia-smi lists."""

    index: int
    uuid: str
    name: str
    memory: Fact[GpuMemory]
    """Absent where the GPU shares the machine's memory, which is then counted there."""
    driver: str
    compute_capability: Fact[str]
    mig_profiles: tuple[str, ...]
    """Slices (`3g.40gb`) of a GPU that is divided; programs see these, not the whole."""
    holders: Fact[tuple[GpuHolder, ...]]
    """Not answered where memory is used and no process is seen: a container hides the others'."""


class Gpus(Record):
    """The GPUs of a machine and what their driver supports."""

    gpus: tuple[Gpu, ...]
    cuda_ceiling: Fact[str]
    """The newest CUDA version that the driver supports."""


class Torch(Record):
    """A torch build, read from its version.py."""

    version: str
    cuda: Fact[str]
    """CUDA version it was built for; absent in a CPU or ROCm build."""
    hip: Fact[str]
    sees_gpu: Fact[bool]
    """By build and driver: a build for a newer major CUDA version than the driver's ceiling sees no
    GPU; one for a newer minor version is not decided."""


class Python(Record):
    """One interpreter or environment and what is installed in it."""

    file: str
    """The program; for an environment, its folder."""
    kind: Literal["program", "venv", "conda"]
    on_path: bool
    """Whether a non-interactive shell finds it."""
    version: Fact[str]
    torch: Fact[Torch]
    packages: dict[str, str]
    """Versions of those that matter here."""
    sees_system_packages: bool


class Tool(Record):
    """One program."""

    file: str
    on_path: bool
    version: Fact[str]


class ServedModel(Record):
    """One model that a server says it serves."""

    id: str
    root: Fact[str]
    max_model_len: Fact[int]


class Server(Record):
    """A model server: something that listens, or a process that looks like one."""

    address: Fact[str]
    """`ADDRESS:PORT`; absent where the process does not listen (yet)."""
    engine: Fact[str]
    pid: Fact[int]
    options: dict[str, str]
    """Model, drafter, parallelism and speculation from its command line; nothing else of it."""
    models: Fact[tuple[ServedModel, ...]]


class ModelFolder(Record):
    """One folder with a config or weights."""

    folder: str
    """Below the root that was asked; `.` is the root itself."""
    kind: Literal["target", "drafter", "unknown"]
    files_bytes: int
    """All its files, hard and symbolic links to one file counted once."""
    weights_bytes: int
    """What a loader reads: without copies in `original/` and in other formats."""
    weight_format: Literal["safetensors", "pickle", "gguf", "none"]
    weight_files: int
    shards_in_index: Fact[int]
    missing_shards: tuple[str, ...]
    pointer_files: tuple[str, ...]
    """Git LFS pointers: text that stands for weights which were not downloaded."""
    copies: tuple[str, ...]
    """Weights in `original/` or in a second format."""
    copies_bytes: int
    findings: tuple[str, ...]
    """What is wrong or worth knowing, in sentences."""
    target: Fact[TargetFacts]
    drafter: Fact[DrafterConfig]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_whole(self) -> bool:
        """Whether there are weights, and every shard that the index names is one."""
        return self.weight_files > 0 and not self.missing_shards and not self.pointer_files


class ModelRoot(Record):
    """What lies below one folder of models."""

    asked: str
    place: str
    """Absolute."""
    folders: Fact[tuple[ModelFolder, ...]]


class DiskRate(Record):
    """One reader, from start to end."""

    bytes_per_second: float
    file: str
    """What was read: 128 MiB of it."""
    past_cache: bool
    """Whether the page cache was left out; otherwise it may have helped."""


class MatrixRate(Record):
    """Square matrix products."""

    side: int
    flops_per_second: float
    """Additions and multiplications, 2 x side cubed for each product; the best of many."""


class PeerRate(Record):
    """From one GPU to another."""

    index: int
    is_direct: bool
    copy_bytes_per_second: float
    """Read and written bytes together."""


class GpuRates(Record):
    """One GPU."""

    index: int
    copy_bytes_per_second: float
    """Read and written bytes together."""
    matrix: dict[str, MatrixRate]
    peers: tuple[PeerRate, ...]


class Measured(Record):
    """What a Python on the machine measured, beside whatever ran there."""

    tool: str
    """`torch 2.13.0, 16 threads` or `numpy 2.4`."""
    copy_bytes_per_second: float
    """Main memory, read and written bytes together."""
    matrix: dict[str, MatrixRate]
    """By number type; numpy only has float32."""
    gpus: tuple[GpuRates, ...] = ()
    gpus_without_room: tuple[int, ...] = ()
    """Less than 2 GiB were free there, and nothing was measured."""


class Rates(Record):
    """Measured rates; each is the best that was seen in a second or less."""

    disk_read: Fact[DiskRate]
    zero_fill_bytes_per_second: Fact[float]
    """One thread filling memory (dd); there without any Python."""
    computed: Fact[Measured]


class HostFacts(Document):
    """One machine, as it was when it was asked."""

    SCHEMA: ClassVar[str] = "draftlab.host/1"

    host: str
    """As given; `localhost` is the machine that asked."""
    asked_seconds: float
    """From starting the connection to the end of the answer."""
    system: Fact[System]
    memory: Fact[Memory]
    disks: tuple[AskedDisk, ...]
    cpu: Fact[Cpu]
    gpus: Fact[Gpus]
    pythons: Fact[tuple[Python, ...]]
    tools: Fact[dict[str, Fact[Tool]]]
    servers: Fact[tuple[Server, ...]]
    scripts: Fact[tuple[str, ...]]
    models: Fact[tuple[ModelRoot, ...]]
    drafters: Fact[tuple[str, ...]]
    """Folders of DFlash drafters below all model folders."""
    rates: Fact[Rates]
    provenance: Provenance

    @computed_field  # type: ignore[prop-decorator]
    @property
    def not_answered(self) -> tuple[str, ...]:
        """The facts that were asked and not answered."""
        names = (
            "system", "memory", "cpu", "gpus", "pythons", "tools", "servers", "scripts", "rates",
        )  # fmt: skip
        missing = [name for name in names if isinstance(getattr(self, name), NotAnswered)]
        missing += [
            f"disk {asked.asked}" for asked in self.disks if isinstance(asked.disk, NotAnswered)
        ]
        if isinstance(self.models, Known):
            roots = self.models.value
            missing += [
                f"models {root.asked}" for root in roots if isinstance(root.folders, NotAnswered)
            ]
        elif isinstance(self.models, NotAnswered):
            missing.append("models")
        return tuple(missing)
