// CUDA GPUs without a GPU: a backend for PyTorch's build for CPUs.
//
// A tensor of this backend is of a CUDA device to PyTorch: dispatch, autograd's threads, autocast and
// the rules about devices are those of CUDA.  Its memory is the host's, and kernels run on the CPU.
// Where a CUDA device would make the host wait, `teller` hears of it.  Copies to page-locked memory
// arrive at the next wait, as they may on a GPU, and page-locked memory that was overwritten
// before a copy out of it was waited for is a "race".  `capture_*` are CUDA graphs: kernels are
// recorded as they run, what they wrote is taken back, as a GPU's capture runs nothing, and
// a replay runs them on the same memory.
//
// Plain C functions, called through ctypes, spare this file the headers of Python.
#include "standin_device.h"

namespace {

// ---- what is told, and what arrives at a wait

using Teller = void (*)(const char* kind, const char* name, int64_t bytes);
std::atomic<Teller> teller{nullptr};

void tell(const char* kind, const std::string& name, int64_t bytes) {
  if (Teller told = teller) told(kind, name.c_str(), bytes);
}

struct Pending {
  int64_t number;
  Tensor host;  // the page-locked end, a CPU tensor
  Tensor then;  // what it shall hold (to the host), or held (from the host)
  bool to_host;
};
std::mutex pending_lock;
std::deque<Pending> pending;
std::atomic<int64_t> issued{0};

size_t size_of(const Tensor& t) { return t.numel() * t.element_size(); }

// All that was issued up to `number` has happened.
void arrive(int64_t number) {
  int races = 0;
  std::deque<Pending> over;  // freed after the lock: to free a tensor that Python knows takes Python's lock
  {
    std::lock_guard<std::mutex> held(pending_lock);
    while (!pending.empty() && pending.front().number <= number) {
      Pending& p = pending.front();
      void* host = p.host.mutable_data_ptr();
      if (p.to_host) std::memcpy(host, p.then.const_data_ptr(), size_of(p.host));
      else if (std::memcmp(host, p.then.const_data_ptr(), size_of(p.host)) != 0) ++races;
      over.push_back(std::move(p));
      pending.pop_front();
    }
  }
  for (; races; --races) tell("race", "page-locked memory overwritten before its copy was waited for", 0);
}

Tensor same_bytes(const Tensor& t) {
  Tensor made = at::empty(t.sizes(), t.options().pinned_memory(false));
  std::memcpy(made.mutable_data_ptr(), t.const_data_ptr(), size_of(t));
  return made;
}

constexpr size_t kMostPending = 4096;

void later(const Tensor& host, const Tensor& then, bool to_host) {
  Pending over;
  std::lock_guard<std::mutex> held(pending_lock);
  pending.push_back({++issued, host, then, to_host});
  if (to_host) std::memset(host.mutable_data_ptr(), 0xff, size_of(host));
  if (pending.size() > kMostPending && !pending.front().to_host) {
    over = std::move(pending.front());
    pending.pop_front();
  }
}

// ---- graphs

enum class Copy { device, to_host, to_host_later, from_host, from_host_later };

struct Recorded {
  c10::OperatorHandle op;
  std::vector<IValue> arguments;  // CPU tensors on the memory of those of the device
  std::vector<IValue> results;    // of the run that was recorded
  bool is_copy;
  Copy kind;
};
struct Graph {
  std::vector<Recorded> steps;
  // What was there before the capture, which on a GPU runs nothing.
  std::map<const void*, std::pair<Storage, std::vector<char>>> memory;
  std::vector<std::pair<at::Generator, Tensor>> generators;
};
std::atomic<Graph*> recording{nullptr};
std::mutex recording_lock;

void record(Recorded step) {
  std::lock_guard<std::mutex> held(recording_lock);
  if (Graph* graph = recording) graph->steps.push_back(std::move(step));
}

// The memory of a CPU tensor is written, or its generator drawn from, while a graph is captured.
void will_change(const Tensor& written) {
  std::lock_guard<std::mutex> held(recording_lock);
  Graph* graph = recording;
  if (!graph || !written.defined() || !written.has_storage()) return;
  const Storage& storage = written.storage();
  const auto* bytes = static_cast<const char*>(storage.data());
  if (!bytes || graph->memory.count(bytes)) return;
  graph->memory.emplace(bytes, std::pair{storage, std::vector<char>(bytes, bytes + storage.nbytes())});
}

void will_change(const at::Generator& drawn) {
  std::lock_guard<std::mutex> held(recording_lock);
  Graph* graph = recording;
  if (!graph) return;
  for (auto& [known, state] : graph->generators) if (known == drawn) return;
  graph->generators.emplace_back(drawn, Tensor(drawn.unsafeGetGeneratorImpl()->get_state()));
}

Graph* captured() {
  Graph* graph = recording.exchange(nullptr);
  for (auto& [place, before] : graph->memory)
    std::memcpy(before.first.mutable_data(), before.second.data(), before.second.size());
  for (auto& [generator, state] : graph->generators)
    generator.unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
  graph->memory.clear();
  graph->generators.clear();
  return graph;
}

// A wait of the host, until all that was issued up to `number` has happened.
void wait(const char* kind, const std::string& name, int64_t bytes, int64_t number = -1) {
  TORCH_CHECK(!recording, "CUDA error: operation not permitted when stream is capturing (", name, ")");
  tell(kind, name, bytes);
  arrive(number < 0 ? issued.load() : number);
}

void Guard::record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const {
  if (!*event) *event = new int64_t;
  *static_cast<int64_t*>(*event) = issued;
}
bool Guard::queryEvent(void* event) const {
  if (event) arrive(*static_cast<int64_t*>(event));
  return true;
}
bool Guard::queryStream(const c10::Stream&) const {
  arrive(issued);
  return true;
}
void Guard::synchronizeEvent(void* event) const {
  wait("event", "synchronize", 0, event ? *static_cast<int64_t*>(event) : 0);
}
void Guard::synchronizeStream(const c10::Stream&) const { wait("stream", "synchronize", 0); }

void copy(const Tensor& to, const Tensor& from, Copy kind) {
  if (recording) {
    if (kind != Copy::to_host_later) to.copy_(from);
    return;
  }
  if (kind == Copy::to_host_later) {
    // At once into memory of its own, which the host sees at the next wait.
    Tensor then = at::empty(to.sizes(), to.options().pinned_memory(false));
    then.copy_(from);
    later(to, then, true);
    return;
  }
  to.copy_(from);
  if (kind == Copy::from_host_later) later(from, same_bytes(from), false);
}

// ---- every kernel without a form for CUDA, on the CPU

struct Aliases {
  std::map<StorageImpl*, Storage> cpu_of;
  std::map<StorageImpl*, Storage> cuda_of;
  std::map<StorageImpl*, DispatchKeySet> keys_of;
  DeviceIndex index = -1;

  Tensor to_cpu(const Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    index = t.device().index();
    auto* s = t.storage().unsafeGetStorageImpl();
    auto it = cpu_of.find(s);
    if (it == cpu_of.end()) {
      auto* keep = new Storage(t.storage());
      c10::DataPtr data(
          const_cast<void*>(s->data()), keep, [](void* p) { delete static_cast<Storage*>(p); },
          Device(DeviceType::CPU));
      Storage cpu(Storage::use_byte_size_t(), s->nbytes(), std::move(data), nullptr, false);
      it = cpu_of.emplace(s, cpu).first;
      cuda_of.emplace(cpu.unsafeGetStorageImpl(), t.storage());
      keys_of.emplace(cpu.unsafeGetStorageImpl(), t.key_set());
    }
    auto made = c10::make_intrusive<TensorImpl>(
        Storage(it->second), DispatchKeySet(DispatchKey::CPU), t.dtype());
    made->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return Tensor(std::move(made));
  }

  Tensor to_cuda(const Tensor& c) {
    if (!c.defined() || !c.is_cpu()) return c;
    auto* s = c.storage().unsafeGetStorageImpl();
    auto it = cuda_of.find(s);
    if (it == cuda_of.end()) {
      const DeviceIndex on = index < 0 ? current : index;
      auto* keep = new Storage(c.storage());
      c10::DataPtr data(
          const_cast<void*>(s->data()), keep, [](void* p) { delete static_cast<Storage*>(p); }, gpu(on));
      Storage made(Storage::use_byte_size_t(), s->nbytes(), std::move(data), memory(on), true);
      it = cuda_of.emplace(s, made).first;
    }
    auto key = keys_of.find(s);
    auto made = key == keys_of.end()
        ? c10::make_intrusive<TensorImpl>(Storage(it->second), DispatchKeySet(DispatchKey::CUDA), c.dtype())
        : c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, Storage(it->second), key->second, c.dtype());
    made->set_sizes_and_strides(c.sizes(), c.strides(), c.storage_offset());
    return Tensor(std::move(made));
  }
};

const std::set<std::string> kWaits = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::nonzero.out", "aten::masked_select",
    "aten::masked_select.out", "aten::_unique2", "aten::_unique", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::equal",
    "aten::repeat_interleave.Tensor", "aten::bincount", "aten::is_nonzero"};
const std::set<std::string> kViews = {
    "aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::alias", "aten::unfold",
    "aten::view.dtype", "aten::set_.source_Storage_storage_offset", "aten::resize_"};
// These take indices of the CPU beside tensors of the device.
const std::set<std::string> kMixed = {
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::_index_put_impl_",
    "aten::index_put"};
const std::set<std::string> kPuts = {"aten::index_put_", "aten::_index_put_impl_", "aten::index_put"};

std::string name_of(const c10::OperatorHandle& op) {
  const auto& n = op.operator_name();
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

template <typename F>
void each_tensor(const std::vector<IValue>& values, F look) {
  for (const IValue& v : values) {
    if (v.isTensor()) look(v.toTensor());
    else if (v.isTensorList()) for (const Tensor& t : v.toTensorVector()) look(t);
    else if (v.isOptionalTensorList())
      for (const auto& t : v.toOptionalTensorVector()) if (t) look(*t);
  }
}

// By CUDA's rules a kernel has tensors of one device, and scalars of the CPU.
void check_devices(const std::string& name, const std::vector<IValue>& arguments) {
  int64_t cpu = 0, scalars = 0;
  DeviceIndex index = -1;
  each_tensor(arguments, [&](const Tensor& t) {
    if (!t.defined()) return;
    if (t.is_cuda()) {
      TORCH_CHECK(index < 0 || index == t.device().index(),
          "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(index),
          " and ", t.device(), "! (", name, ")");
      index = t.device().index();
    } else if (t.is_cpu() && t.dim() > 0) ++cpu;
    else if (t.is_cpu() && !t.unsafeGetTensorImpl()->is_wrapped_number()) ++scalars;
  });
  if (index < 0) return;
  if (cpu) {
    TORCH_CHECK(kMixed.count(name),
        "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(index),
        " and cpu! (", name, ")");
    if (kPuts.count(name)) wait("h2d_index", name, 0);  // others were told when they made their shapes
  }
  if (scalars) tell("cpu_scalar", name, 0);
}

// With a mask among the indices CUDA counts its true places first, unless it only fills them.
bool counts_places(const std::string& name, const std::vector<IValue>& arguments) {
  if (!kPuts.count(name)) return false;
  bool mask = false;
  for (const auto& t : arguments[1].toOptionalTensorVector())
    if (t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte)) mask = true;
  const Tensor& value = arguments[2].toTensor();
  return mask && !(value.numel() == 1 && value.is_cpu());
}

IValue on_cpu(Aliases& aliases, const IValue& v, bool written) {
  if (v.isTensor()) {
    const Tensor& t = v.toTensor();
    if (written && t.defined() && t.is_cuda() && t.numel() == 0) {
      aliases.index = t.device().index();
      return at::empty({0}, at::TensorOptions(at::kCPU).dtype(t.scalar_type()));
    }
    return aliases.to_cpu(t);
  }
  if (v.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor& t : v.toTensorVector()) made.push_back(aliases.to_cpu(t));
    return made;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const auto& t : v.toOptionalTensorVector())
      made.push_back(t ? std::optional<Tensor>(aliases.to_cpu(*t)) : std::nullopt);
    return made;
  }
  if (v.isDevice() && v.toDevice().is_cuda()) {
    aliases.index = known(v.toDevice());
    return Device(DeviceType::CPU);
  }
  if (v.isGenerator() && v.toGenerator().device().is_cuda())
    return static_cast<Noise*>(v.toGenerator().unsafeGetGeneratorImpl())->inner;
  return v;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// A tensor that the kernel wrote is the argument itself, with new memory where it has grown.
Tensor written_argument(const c10::FunctionSchema& schema, const std::vector<IValue>& original,
    const c10::Argument& result, const Tensor& made, Aliases& aliases, const std::string& name) {
  for (size_t k = 0; k < original.size(); ++k) {
    const auto& a = schema.arguments()[k];
    if (!is_written(a) || a.alias_info()->beforeSets() != result.alias_info()->beforeSets()) continue;
    const Tensor& own = original[k].toTensor();
    if (own.sizes() != made.sizes()) {
      TORCH_CHECK(own.numel() == 0, "the stand-in can't resize a tensor in ", name);
      Tensor grown = aliases.to_cuda(made);
      auto* impl = own.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(grown.storage());
      impl->set_sizes_and_strides(grown.sizes(), grown.strides(), grown.storage_offset());
    }
    return own;
  }
  TORCH_CHECK(false, "the stand-in finds no argument that ", name, " wrote");
}

void expect_changes(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (is_written(argument)) each_tensor({arguments[i]}, [](const Tensor& t) { will_change(t); });
    if (argument.name() == "generator")
      will_change(arguments[i].isGenerator() ? arguments[i].toGenerator() : at::detail::getDefaultCPUGenerator());
  }
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t nargs = schema.arguments().size(), begin = stack->size() - nargs;
  const std::string name = name_of(op);
  const bool is_view = kViews.count(name);
  const std::vector<IValue> original(stack->begin() + begin, stack->end());
  check_devices(name, original);
  if (kWaits.count(name)) wait("sync", name, 0);
  else if (counts_places(name, original)) wait("sync", name + " (mask)", 0);
  if (!is_view && !kWaits.count(name)) tell("kernel", name, 0);
  Aliases aliases;
  std::vector<IValue> arguments;
  {
    c10::InferenceMode plain(false);
    for (size_t i = 0; i < nargs; ++i)
      arguments.push_back(on_cpu(aliases, original[i], is_written(schema.arguments()[i])));
    std::copy(arguments.begin(), arguments.end(), stack->begin() + begin);
    if (recording && !is_view) expect_changes(schema, arguments);
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  const size_t nrets = schema.returns().size(), first = stack->size() - nrets;
  if (recording && !is_view)
    record({op, arguments, {stack->begin() + first, stack->end()}, false, Copy::device});
  for (size_t i = 0; i < nrets; ++i) {
    IValue& v = (*stack)[first + i];
    const auto& result = schema.returns()[i];
    if (v.isTensor()) {
      const Tensor made = v.toTensor();
      v = is_written(result) ? written_argument(schema, original, result, made, aliases, name) : aliases.to_cuda(made);
    } else if (v.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& t : v.toTensorVector()) made.push_back(aliases.to_cuda(t));
      v = made;
    }
  }
}

void run_again(const Recorded& step) {
  if (step.is_copy) {
    copy(step.arguments[0].toTensor(), step.arguments[1].toTensor(), step.kind);
    return;
  }
  torch::jit::Stack stack(step.arguments);
  step.op.callBoxed(&stack);
  const auto& returns = step.op.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    if (is_written(returns[i])) continue;
    const IValue &old = step.results[i], &now = stack[stack.size() - returns.size() + i];
    if (old.isTensor() && old.toTensor().defined()) old.toTensor().copy_(now.toTensor());
    if (!old.isTensorList()) continue;
    const auto before = old.toTensorVector(), after = now.toTensorVector();
    for (size_t k = 0; k < before.size(); ++k) before[k].copy_(after[k]);
  }
}

// ---- what CUDA has of its own

Tensor empty_memory_format(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, memory(known(device.value_or(gpu(current)))),
      DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, memory(known(device.value_or(gpu(current)))),
      DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  if (self.sizes() == size) return self;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t need = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() < need) {
    storage->set_data_ptr_noswap(memory(self.device().index())->allocate(need));
    storage->set_nbytes(need);
  }
  return self;
}

// Which copy `to.copy_(from)` is, and what is told of it.  From page-locked memory the host need not
// wait if the bytes can go as they are; to page-locked memory, if they can arrive as they are.
std::pair<Copy, const char*> kind_of(const Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_cuda() && from.is_cuda())
    return {Copy::device, to.device() == from.device() ? "d2d" : "peer"};
  if (to.is_cuda()) {
    const bool as_it_is = from.is_contiguous() && from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes();
    const bool locked = as_it_is && is_pinned(from.const_data_ptr());
    if (!locked) return {Copy::from_host, non_blocking ? "h2d_pageable" : "h2d"};
    return non_blocking ? std::pair{Copy::from_host_later, "h2d_async"} : std::pair{Copy::from_host, "h2d"};
  }
  if (non_blocking && to.is_contiguous() && is_pinned(to.const_data_ptr()))
    return {Copy::to_host_later, "d2h_async"};
  return {Copy::to_host, "d2h"};
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  const auto [kind, word] = kind_of(self, source, non_blocking);
  const int64_t bytes = self.numel() * static_cast<int64_t>(source.element_size());
  if (kind == Copy::to_host || kind == Copy::from_host) wait(word, "aten::copy_", bytes);
  else tell(word, "aten::copy_", bytes);
  Aliases aliases;
  c10::InferenceMode plain(false);
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor to = aliases.to_cpu(self), from = aliases.to_cpu(source);
  if (kind != Copy::to_host_later) will_change(to);
  copy(to, from, kind);
  if (recording) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    record({op, {to, from}, {}, true, kind});
  }
  return self;
}

Tensor& set_storage(Tensor& self, Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, offset);
  return self;
}

void record_stream(Tensor&, c10::Stream) {}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("record_stream", record_stream);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}

extern "C" {
void standin_teller(Teller told) { teller = told; }
int standin_device(int index) {  // the current one, set where `index` is one
  if (index >= 0) current = static_cast<DeviceIndex>(index);
  return current;
}
void standin_pin(uintptr_t p, size_t n) { pin(reinterpret_cast<void*>(p), n); }
void standin_unpin(uintptr_t p) { unpin(reinterpret_cast<void*>(p)); }
int standin_synchronize() {  // 0 while a graph is captured, when it is refused
  if (recording) return 0;
  wait("device", "synchronize", 0);
  return 1;
}
int standin_capturing() { return recording != nullptr; }
void standin_capture_begin() { recording = new Graph(); }
void* standin_capture_end() { return captured(); }
void standin_replay(void* graph) {
  tell("graph", "replay", 0);
  c10::InferenceMode plain(false);
  at::AutoDispatchBelowADInplaceOrView below;
  for (const Recorded& step : static_cast<Graph*>(graph)->steps) run_again(step);
}
int64_t standin_steps(void* graph) { return static_cast<int64_t>(static_cast<Graph*>(graph)->steps.size()); }
void standin_forget(void* graph) { delete static_cast<Graph*>(graph); }
}
