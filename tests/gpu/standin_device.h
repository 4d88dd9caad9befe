// The devices of the stand-in: their memory, page-locked memory, generators, and PyTorch's hooks.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
using c10::TensorImpl;

namespace {

// ---- devices

constexpr int kMost = 8;

DeviceIndex devices() {
  static const DeviceIndex n = [] {
    const char* asked = std::getenv("STANDIN_GPUS");
    const int number = asked ? std::atoi(asked) : 1;
    return static_cast<DeviceIndex>(number < 1 ? 1 : number > kMost ? kMost : number);
  }();
  return n;
}

thread_local DeviceIndex current = 0;

Device gpu(int index) { return Device(DeviceType::CUDA, static_cast<DeviceIndex>(index)); }

DeviceIndex known(Device device) {
  const DeviceIndex index = device.has_index() ? device.index() : current;
  TORCH_CHECK(index >= 0 && index < devices(), "CUDA error: invalid device ordinal");
  return index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(Device d) {
    return c10::Stream(c10::Stream::DEFAULT, gpu(d.has_index() ? d.index() : current));
  }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override {
    const Device before = gpu(current);
    current = known(d);
    return before;
  }
  Device getDevice() const override { return gpu(current); }
  void setDevice(Device d) const override { current = known(d); }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.has_index()) current = d.index();
  }
  c10::Stream getStream(Device d) const noexcept override { return stream(d); }
  c10::Stream getDefaultStream(Device d) const override { return stream(d); }
  c10::Stream getNewStream(Device d, int = 0) const override { return stream(d); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override { return stream(s.device()); }
  DeviceIndex deviceCount() const noexcept override { return devices(); }
  // An event is the number of the last copy that was issued before it was recorded.
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override;
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<int64_t*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override;
  bool queryStream(const c10::Stream&) const override;
  void synchronizeEvent(void* event) const override;
  void synchronizeStream(const c10::Stream&) const override;
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// ---- memory

struct Memory final : c10::Allocator {
  DeviceIndex index = 0;
  c10::DataPtr allocate(size_t n) override {
    void* p = n ? c10::alloc_cpu(n) : nullptr;
    return {p, p, &c10::free_cpu, gpu(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* d, const void* s, std::size_t n) const override { default_copy_data(d, s, n); }
};

Memory* memory(DeviceIndex index) {
  static Memory* all = [] {
    auto* made = new Memory[kMost];
    for (int i = 0; i < kMost; ++i) made[i].index = static_cast<DeviceIndex>(i);
    return made;
  }();
  return all + index;
}
const bool registered = (c10::SetAllocator(DeviceType::CUDA, memory(0)), true);

std::mutex pinned_lock;
std::map<uintptr_t, size_t> pinned;

bool is_pinned(const void* p) {
  std::lock_guard<std::mutex> held(pinned_lock);
  auto it = pinned.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == pinned.begin()) return false;
  --it;
  return reinterpret_cast<uintptr_t>(p) < it->first + it->second;
}

void pin(const void* p, size_t n) {
  std::lock_guard<std::mutex> held(pinned_lock);
  pinned[reinterpret_cast<uintptr_t>(p)] = n;
}

void unpin(const void* p) {
  std::lock_guard<std::mutex> held(pinned_lock);
  pinned.erase(reinterpret_cast<uintptr_t>(p));
}

void free_pinned(void* p) {
  unpin(p);
  c10::free_cpu(p);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const size_t size = n ? n : 64;
    void* p = c10::alloc_cpu(size);
    pin(p, size);
    return {p, p, &free_pinned, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* d, const void* s, std::size_t n) const override { default_copy_data(d, s, n); }
};
PinnedAllocator pinned_allocator;

// ---- random numbers: the CPU's, with another name

struct Noise final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Noise(int index)
      : c10::GeneratorImpl(gpu(index), DispatchKeySet(DispatchKey::CUDA)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Noise* clone_impl() const override {
    auto* made = new Noise(device().index());
    made->inner = inner.clone();
    return made;
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator>* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < kMost; ++i) made->push_back(at::make_generator<Noise>(i));
    return made;
  }();
  return (*all)[index < 0 ? current : index];
}

}  // namespace

namespace at {
struct StandinHooks final : CUDAHooksInterface {
  explicit StandinHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex deviceCount() const override { return devices(); }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex i) const override { current = i; }
  DeviceIndex exchangeDevice(DeviceIndex i) const override {
    const DeviceIndex before = current;
    current = i;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override { return exchangeDevice(i); }
  int getNumGPUs() const override { return devices(); }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Device getDeviceFromPtr(void*) const override { return gpu(current); }
  const Generator& getDefaultGenerator(DeviceIndex i = -1) const override { return default_generator(i); }
  Generator getNewGenerator(DeviceIndex i = -1) const override {
    return at::make_generator<Noise>(static_cast<int>(i < 0 ? current : i));
  }
  void deviceSynchronize(DeviceIndex) const override {}
};
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", StandinHooks);
}  // namespace at
