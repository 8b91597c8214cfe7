"""NVML as `cuda.bindings.nvml` gives it, of GPUs that are values: clocks that change, calls that fail or miss."""

from types import SimpleNamespace


class NvmlError(Exception):
    """What a real one raises; not an error that any Python code knows."""


class Gpu:
    """One GPU: `answers` maps NVML's functions of a device to a value, an exception, or a function of the arguments."""

    def __init__(self, uuid, name="NVIDIA H200", instances=None, **answers):
        self.uuid, self.name, self.instances = uuid, name, instances
        self.answers = {
            "device_get_clock_info": lambda kind: {"SM": 1980, "MEM": 3201}[kind],
            "device_get_max_clock_info": lambda kind: {"SM": 1980, "MEM": 3201}[kind],
            "device_get_power_usage": 350_000,
            "device_get_temperature_v": lambda _: 41,
            "device_get_current_clocks_event_reasons": 0,
            "device_get_enforced_power_limit": 700_000,
            "device_get_power_management_default_limit": 700_000,
            "device_get_persistence_mode": 1,
            "device_get_ecc_mode": (1, 1),
            "device_get_mig_mode": (int(instances is not None),) * 2,
            "device_get_max_mig_device_count": 7,
            "device_get_compute_running_processes_v3": [],
            "device_get_graphics_running_processes_v3": [],
        } | answers


class Nvml:
    """The module. A handle is the GPU itself, or the UUID of a MIG instance; `missing` are functions it lacks."""

    missing = ()
    ClockType = SimpleNamespace(CLOCK_SM="SM", CLOCK_MEM="MEM")
    TemperatureSensors = SimpleNamespace(TEMPERATURE_GPU=0)

    def __init__(self, *gpus, missing=()):
        self.missing, self.gpus = missing, gpus

    def __getattribute__(self, name):
        if name != "missing" and name in self.missing:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __getattr__(self, function):
        if function in self.missing or not function.startswith("device_get_"):
            raise AttributeError(function)

        def ask(handle, *arguments):
            answer = handle.answers[function]
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    def device_get_count_v2(self):
        return len(self.gpus)

    def device_get_handle_by_index_v2(self, index):
        if self.gpus[index].uuid is None:
            raise NvmlError("GPU is lost")
        return self.gpus[index]

    def device_get_handle_by_uuid(self, uuid):
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
            if uuid in (gpu.instances or ()):
                return uuid
        raise NvmlError("Not Found")

    def device_get_uuid(self, handle):
        return handle if isinstance(handle, str) else handle.uuid

    def device_get_name(self, handle):
        return f"{self._holder(handle).name} MIG 1g" if isinstance(handle, str) else handle.name

    def device_get_mig_device_handle_by_index(self, gpu, index):
        if index >= len(gpu.instances or ()):
            raise NvmlError("Not Found")
        return gpu.instances[index]

    def device_get_device_handle_from_mig_device_handle(self, handle):
        if not isinstance(handle, str):
            raise NvmlError("Invalid Argument")
        return self._holder(handle)

    def system_get_driver_version(self):
        return "580.159.04"

    def system_get_cuda_driver_version_v2(self):
        return 13_010

    def _holder(self, instance):
        return next(gpu for gpu in self.gpus if instance in (gpu.instances or ()))
