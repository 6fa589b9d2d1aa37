// SPDX-License-Identifier: Apache-2.0
// Start, devices and contexts.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/fakecuda/state.hpp"
#include "tests/fakecuda/stream.hpp"

namespace fakecuda {
namespace {

std::string uuid_line(const Gpu& gpu) {
  std::string text = "GPU-";
  char digits[3];
  for (std::size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::snprintf(digits, sizeof digits, "%02x", i == 14 ? 0U : static_cast<unsigned>(gpu.uuid.bytes[i]));
    text += digits;
  }
  return text;
}

// Files that stand for what /proc/driver/nvidia/gpus and /dev show; libcuda keeps its device's node open, and so do we.
void make_nodes(const Machine& machine) {
  if (machine.nodes.empty()) return;
  ::mkdir((machine.nodes + "/gpus").c_str(), 0755);
  for (const Gpu& gpu : machine.visible) {
    const std::string minor = std::to_string(gpu.index), node = machine.nodes + "/fake-nvidia" + minor;
    const int fd = ::open(node.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    (void)fd;  // never closed
    const std::string folder = machine.nodes + "/gpus/" + gpu.bus_id;
    ::mkdir(folder.c_str(), 0755);
    const std::string unfinished = folder + "/information." + std::to_string(::getpid());
    std::ofstream(unfinished) << "Model: \t\t " << gpu.name << "\nGPU UUID: \t " << uuid_line(gpu)
                              << "\nDevice Minor: \t " << minor << "\n";
    ::rename(unfinished.c_str(), (folder + "/information").c_str());
  }
}

// A context that is no more may not be named in any call.
bool known(State& it, Context context) {
  const auto is = [=](const auto& one) { return one.get() == context; };
  if (std::ranges::any_of(it.contexts, is)) return true;
  if (std::ranges::none_of(it.own, is)) return false;
  if (!context->usable()) it.violation("a destroyed context was passed to the driver");
  return context->usable();
}

void end_context(State& it, CUctx_st& context) {
  for (const auto& [address, mapping] : it.mappings)
    if (mapping.context == &context)
      it.violation("a context was released or destroyed with memory or registrations of it still there");
  forget_streams(context);
  forget_events(it, context);
}

void copy_text(char* to, int length, const std::string& text) {
  if (length > 0) std::snprintf(to, static_cast<std::size_t>(length), "%s", text.c_str());
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuInit(unsigned flags) {
  if (state().initialised && state().pid != ::getpid()) return kNotInitialized;
  return enter("cuInit", Needs::nothing, [&](State& it, Lock&) -> Code {
    if (flags != 0) return kInvalidValue;
    if (it.initialised) return it.machine.visible.empty() ? kNoDevice : kSuccess;
    it.machine = read_machine();
    for (std::size_t i = 0; i < it.machine.visible.size(); ++i) {
      it.contexts.push_back(std::make_unique<CUctx_st>());
      it.contexts.back()->ordinal = static_cast<int>(i);
      it.contexts.back()->id = it.next_id++;
    }
    it.pid = ::getpid();
    if (it.machine.visible.empty()) return kNoDevice;
    it.initialised = true;
    make_nodes(it.machine);
    return kSuccess;
  });
}

FAKECUDA_API Code cuDriverGetVersion(int* version) {
  return enter("cuDriverGetVersion", Needs::nothing, [&](State&, Lock&) -> Code {
    if (version == nullptr) return kInvalidValue;
    *version = played_version();
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGetCount(int* count) {
  return enter("cuDeviceGetCount", Needs::driver, [&](State& it, Lock&) -> Code {
    *count = static_cast<int>(it.machine.visible.size());
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGet(Device* device, int ordinal) {
  return enter("cuDeviceGet", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(ordinal)) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  return enter("cuDeviceGetUuid", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    *uuid = it.gpu(device).uuid;
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGetName(char* name, int length, Device device) {
  return enter("cuDeviceGetName", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    copy_text(name, length, it.gpu(device).name);
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGetPCIBusId(char* bus, int length, Device device) {
  return enter("cuDeviceGetPCIBusId", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    copy_text(bus, length, it.gpu(device).bus_id);
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  return enter("cuDeviceGetAttribute", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    *value = it.machine.attribute(static_cast<int>(attribute));
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceTotalMem_v2(std::size_t* bytes, Device device) {
  return enter("cuDeviceTotalMem", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    *bytes = it.machine.bytes;
    return kSuccess;
  });
}

FAKECUDA_API Code cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  return enter("cuDeviceCanAccessPeer", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device) || !it.valid(peer)) return kInvalidDevice;
    *can = device != peer && it.machine.peers ? 1 : 0;
    return kSuccess;
  });
}

FAKECUDA_API Code cuDevicePrimaryCtxRetain(Context* context, Device device) {
  return enter("cuDevicePrimaryCtxRetain", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    *context = it.contexts[static_cast<std::size_t>(device)].get();
    ++(*context)->retains;
    return kSuccess;
  });
}

// The last release destroys the context with all that was made in it.
FAKECUDA_API Code cuDevicePrimaryCtxRelease_v2(Device device) {
  return enter("cuDevicePrimaryCtxRelease", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    CUctx_st& context = *it.contexts[static_cast<std::size_t>(device)];
    if (context.retains == 0) return kInvalidContext;
    if (--context.retains > 0) return kSuccess;
    end_context(it, context);
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxCreate_v2(Context* context, unsigned, Device device) {
  return enter("cuCtxCreate", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    CUctx_st& made = *it.own.emplace_back(std::make_unique<CUctx_st>());
    made.ordinal = device;
    made.retains = 1;
    made.primary = false;
    made.id = it.next_id++;
    context_stack().push_back(&made);
    *context = &made;
    return kSuccess;
  });
}

// The remaining work of its streams never runs.
FAKECUDA_API Code cuCtxDestroy_v2(Context context) {
  return enter("cuCtxDestroy", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!known(it, context) || context->primary) return kInvalidContext;
    context->retains = 0;
    context->sticky = kContextDestroyed;
    if (current_context() == context) context_stack().pop_back();
    end_context(it, *context);
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxGetId(Context context, unsigned long long* id) {
  return enter("cuCtxGetId", Needs::driver, [&](State& it, Lock&) -> Code {
    const Context asked = context != nullptr ? context : current_context();
    if (asked == nullptr || (context != nullptr && !known(it, context))) return kInvalidContext;
    if (!asked->usable()) return kContextDestroyed;
    *id = asked->id;
    return kSuccess;
  });
}

FAKECUDA_API Code cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  return enter("cuDevicePrimaryCtxGetState", Needs::driver, [&](State& it, Lock&) -> Code {
    if (!it.valid(device)) return kInvalidDevice;
    *flags = 0;
    *active = it.contexts[static_cast<std::size_t>(device)]->retains > 0;
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxGetCurrent(Context* context) {
  return enter("cuCtxGetCurrent", Needs::driver, [&](State&, Lock&) -> Code {
    *context = current_context();
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxSetCurrent(Context context) {
  return enter("cuCtxSetCurrent", Needs::driver, [&](State& it, Lock&) -> Code {
    if (context != nullptr && !known(it, context)) return kInvalidContext;
    auto& stack = context_stack();
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxPushCurrent_v2(Context context) {
  return enter("cuCtxPushCurrent", Needs::driver, [&](State& it, Lock&) -> Code {
    if (context == nullptr || !known(it, context)) return kInvalidContext;
    context_stack().push_back(context);
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxPopCurrent_v2(Context* context) {
  return enter("cuCtxPopCurrent", Needs::driver, [&](State&, Lock&) -> Code {
    if (context_stack().empty()) return kInvalidContext;
    if (context != nullptr) *context = current_context();
    context_stack().pop_back();
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxGetDevice(Device* device) {
  return enter("cuCtxGetDevice", Needs::driver, [&](State&, Lock&) -> Code {
    const Context context = current_context();
    if (context == nullptr) return kInvalidContext;
    // A primary one that ended is told from a live one by using it, or by cuCtxGetId.
    if (!context->usable() && !context->primary) return kContextDestroyed;
    *device = context->ordinal;
    return kSuccess;
  });
}

FAKECUDA_API Code cuCtxSynchronize() {
  return enter("cuCtxSynchronize", Needs::context, [&](State&, Lock& lock) -> Code {
    const Code code = capture_forbids_context(*current_context());
    return code != kSuccess ? code : wait_for_context(*current_context(), lock);
  });
}

FAKECUDA_API Code cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
  return enter("cuMemGetInfo", Needs::context, [&](State& it, Lock&) -> Code {
    const Gpu& gpu = it.gpu(current_context()->ordinal);
    const std::size_t used = bytes_in_use(it.machine.card, gpu.index, gpu.instance);
    *total = it.machine.bytes;
    *free_bytes = used < *total ? *total - used : 0;
    return kSuccess;
  });
}
