// A pretend accelerator for the tests: PyTorch's PrivateUse1 device, whose memory is the host's and whose operators are
// those of the CPU. Its tensors say that they are elsewhere, and it refuses what a real one refuses:
//
// - a tensor of the host among those of an operator (a number without dimensions and an index are allowed, as on CUDA);
// - an operator that CUDA does not have (`refuse`);
// - reading the target of a copy to the host that is not finished: it holds nothing before `synchronize`;
// - changing pinned memory before the copy from it is finished: what is copied is what is there later.
//
// Fresh memory is filled with 0xff, which is no number.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <set>

namespace {

using at::Tensor;
constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// Memory

std::map<const char*, size_t> pinned_blocks;

template <bool pinned>
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (data) std::memset(data, 0xff, bytes);
    if (data && pinned) pinned_blocks[static_cast<const char*>(data)] = bytes;
    return {data, data, &release, pinned ? c10::Device(c10::kCPU) : c10::Device(kDevice, 0)};
  }
  static void release(void* data) {
    if (pinned) pinned_blocks.erase(static_cast<const char*>(data));
    c10::free_cpu(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

Memory<false> device_memory;
Memory<true> pinned_memory;
REGISTER_ALLOCATOR(kDevice, &device_memory);

bool is_pinned(const void* data) {
  const auto* at = static_cast<const char*>(data);
  auto after = pinned_blocks.upper_bound(at);
  if (after == pinned_blocks.begin()) return false;
  --after;
  return at < after->first + after->second;
}

// Copies

struct Copy {
  Tensor from, to;  // both seen as the host's
};
std::vector<Copy> to_device, to_host;  // not finished

Tensor seen_by_host(const Tensor& tensor) {
  if (tensor.device().type() != kDevice) return tensor;
  auto keep = tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep](void*) {}, tensor.options().device(c10::kCPU));
}

void finish(std::vector<Copy>& copies) {
  c10::InferenceMode without_versions(false);
  std::vector<Copy> taken;
  taken.swap(copies);
  for (auto& copy : taken) copy.to.copy_(copy.from);
}

void synchronize() {
  finish(to_device);
  finish(to_host);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  finish(to_device);  // in the order of the stream
  auto source = seen_by_host(from), target = seen_by_host(to);
  const bool leaves = from.device().type() == kDevice && to.is_cpu();
  if (leaves && non_blocking) {
    auto now = source.clone();
    if (target.is_contiguous()) std::memset(target.data_ptr(), 0xff, target.nbytes());
    to_host.push_back({now, target});
  } else if (from.is_cpu() && non_blocking && is_pinned(from.const_data_ptr())) {
    to_device.push_back({source, target});
  } else {
    if (leaves) synchronize();
    target.copy_(source);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar read_number(const Tensor& tensor) {
  synchronize();
  return seen_by_host(tensor).item();
}

// Tensors

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

// Operators: all that has no kernel above is done by the CPU's, on copies

std::set<std::string> refused;

void check_place(const Tensor& tensor, const std::string& name) {
  TORCH_CHECK(!tensor.defined() || tensor.device().type() == kDevice || tensor.dim() == 0,
              "Expected all tensors to be on the same device, but ", name, " got one of ", tensor.sizes(), " on ",
              tensor.device(), " beside those on ", c10::Device(kDevice, 0));
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(!refused.count(name), name, " has no kernel on an accelerator, only on the CPU");
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const auto& value : arguments) {
    if (value.isTensor()) check_place(value.toTensor(), name);
    if (value.isTensorList()) {
      for (const Tensor tensor : value.toTensorList()) check_place(tensor, name);
    }
  }
  finish(to_device);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &read_number);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FLOAT32)
}

// What PyTorch asks of a device: one device, one stream

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device getDevice() const override { return {kDevice, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0)); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Numbers final : at::CPUGeneratorImpl {
  explicit Numbers() {
    device_ = c10::Device(kDevice, 0);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Device getDeviceFromPtr(void*) const override { return {kDevice, 0}; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Numbers>(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto numbers = at::make_generator<Numbers>();
    return numbers;
  }
};

const bool registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// For the tests, as torch.ops.pretend.*

void refuse(const c10::List<std::string>& names) { refused = {names.begin(), names.end()}; }

TORCH_LIBRARY(pretend, library) {
  library.def("synchronize() -> ()", &synchronize);
  library.def("refuse(str[] names) -> ()", &refuse);
}

}  // namespace
