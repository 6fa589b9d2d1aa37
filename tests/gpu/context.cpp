// SPDX-License-Identifier: Apache-2.0
// T30: which calls on regions need a current context. A broker's client is called from any thread, also from one that
// has never touched the driver. T31: whether the driver tells how far a whole context has come, which is the only wait
// with a deadline, and what that question and its substitute do to a stream that is being captured.
#include <string>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;
constexpr std::uint64_t kSeed = 0x5eed0030;

// Every call that an import and its release make, whatever the ones before gave. True: all of them succeeded.
bool each_call(const char* name, int fd) {
  Context current = nullptr;
  const Code asked = cu.context_get(&current);
  MemHandle handle = 0;
  const Code imported = try_import(fd, &handle);
  Address address = 0;
  const Code reserved = cu.address_reserve(&address, kBytes, 0, 0, 0);
  const Code mapped = cu.mem_map(address, kBytes, 0, handle, 0);
  const AccessDesc who{{kDeviceLocation, 0}, kReadWrite};
  const Code allowed = cu.mem_access(address, kBytes, &who, 1);
  const Code unmapped = mapped == kSuccess ? cu.mem_unmap(address, kBytes) : mapped;
  const Code freed = reserved == kSuccess ? cu.address_free(address, kBytes) : reserved;
  const Code released = imported == kSuccess ? cu.mem_release(handle) : imported;
  unsigned flags = 0;
  int active = -1;
  const Code state = cu.primary_state(0, &flags, &active);
  fact(name,
       "current context %s (%d); import %d, reserve %d, map %d, set access %d, unmap %d, free address %d, release %d; "
       "primary context active afterwards: %d (%d)",
       current == nullptr ? "none" : "yes", asked, imported, reserved, mapped, allowed, unmapped, freed, released,
       active, state);
  return imported == kSuccess && reserved == kSuccess && mapped == kSuccess && allowed == kSuccess &&
         unmapped == kSuccess && freed == kSuccess && released == kSuccess;
}

void use_without_context(const Line& line) {
  start_driver();
  Message order = line.expect("import");
  const int fd = order.fds.at(0);
  const bool bare = each_call("no_context", fd);
  fact("answer", "%s", bare ? "no call needs a current context" : "some call needs a current context");
  // Mapped without a context, used with one that comes later.
  MemHandle handle = 0;
  Region early{};
  if (bare && try_import(fd, &handle) == kSuccess) early = map_handle(handle, kBytes);
  Context context = nullptr;
  must(cu.primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
  each_call("context_retained_not_current", fd);
  start_gpu();
  if (!each_call("context_current", fd)) wrong("a call fails in a current context");
  if (early.address != 0) {
    const std::uint64_t differ = mismatches(early.address, kBytes, kSeed);
    fact("mapped_before_its_context", "%llu words differ", static_cast<unsigned long long>(differ));
    if (differ != 0) wrong("a mapping that was made without a context shows other data");
  }
  line.say("done");
  until_end(line);
}

// Whether "the context has come this far" waits for a stream of that kind.
void follows(const char* name, Stream stream, Context context) {
  Event event = nullptr;
  must(cu.event_create(&event, kDisableTiming), "cuEventCreate");
  spin(lasting(400'000'000), stream);
  must(cu.context_record(context, event), "cuCtxRecordEvent");
  const Code first = cu.event_query(event);
  Code code = first;
  const double start = now_ms();
  while ((code = cu.event_query(event)) == kNotReady && now_ms() - start < 10'000) sleep_ms(1);
  const Code of_stream = cu.stream_query(stream);
  fact(name, "the event is %s at once, %s after %.0f ms, its stream then %s", code_text(first).c_str(),
       code_text(code).c_str(), now_ms() - start, code_text(of_stream).c_str());
  if (code == kSuccess && of_stream != kSuccess) wrong("cuCtxRecordEvent does not wait for the %s stream", name);
  if (code != kSuccess) wrong("the event of a context never comes: %s", code_text(code).c_str());
  must(cu.event_destroy(event), "cuEventDestroy");
}

// A call while a stream of the context is captured: its code, the capture's state and end.
void during_capture(const std::string& name, int mode, Code (*call)(Context, Event), Context context) {
  const Stream stream = make_stream();
  Event event = nullptr;
  must(cu.event_create(&event, kDisableTiming), "cuEventCreate");
  must(cu.begin_capture(stream, mode), "cuStreamBeginCapture");
  const Code called = call(context, event);
  int state = -1;
  const Code asked = cu.stream_capturing(stream, &state);
  Graph graph = nullptr;
  const Code ended = cu.end_capture(stream, &graph);
  if (graph != nullptr) must(cu.graph_destroy(graph), "cuGraphDestroy");
  fact(name.c_str(), "the call %s; the capture's state %d (%d; 2: invalidated), its end %s", code_text(called).c_str(),
       state, asked, code_text(ended).c_str());
}

void ask_context(const Line& line) {
  start_gpu();
  Context context = nullptr;
  must(cu.context_get(&context), "cuCtxGetCurrent");
  const auto synchronize = [](Context, Event) { return cu.context_sync(); };
  const auto record = [](Context of, Event event) { return cu.context_record(of, event); };
  if (cu.context_record == nullptr) {
    fact("answer", "the driver has no cuCtxRecordEvent");
  } else {
    Stream blocking = nullptr;
    must(cu.stream_create(&blocking, 0), "cuStreamCreate");
    follows("default", nullptr, context);
    follows("blocking", blocking, context);
    follows("non_blocking", make_stream(), context);
  }
  constexpr const char* kModes[] = {"global", "thread_local", "relaxed"};
  for (int mode = 0; mode < 3; ++mode) {
    if (cu.context_record != nullptr) during_capture(std::string("record_") + kModes[mode], mode, record, context);
    if (cu.context_sync != nullptr)
      during_capture(std::string("synchronize_") + kModes[mode], mode, synchronize, context);
  }
  line.say("done");
  until_end(line);
}

}  // namespace

void t30_no_context() {
  Actor made("producer", [](const Line& line) {
    start_gpu();
    Region region = create_mapped(kBytes);
    fill(region.address, kBytes, kSeed);
    std::vector<int> fds{export_fd(region.handle)};
    line.say("published", fds);
    close_all(fds);
    until_end(line);
  });
  Message published = made.line().expect("published");
  Actor consumer("consumer", use_without_context);
  consumer.line().say("import", {published.fds.at(0)});
  consumer.line().expect("done");
  consumer.finish();
  close_all(published.fds);
  made.finish();
}

void t31_context_event() {
  Actor process("process", ask_context);
  process.line().expect("done");
  process.finish();
}

}  // namespace shmb::facts
