// SPDX-License-Identifier: Apache-2.0
// The common part of every call, the functions for tests, and the audit.
#include "tests/fakecuda/state.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace fakecuda {
namespace {

bool parse_failures(State& it, const std::string& text) {
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t first = entry.find(':');
    const std::size_t second = first == std::string::npos ? first : entry.find(':', first + 1);
    if (second == std::string::npos) return false;
    Failure failure;
    failure.function = entry.substr(0, first);
    const std::string at = entry.substr(first + 1, second - first - 1);
    failure.for_ever = at.ends_with('+');
    failure.at = it.calls[failure.function] + std::atol(at.c_str());
    failure.code = std::atoi(entry.substr(second + 1).c_str());
    if (failure.code == 0 || std::atol(at.c_str()) < 1) return false;
    it.failures.push_back(failure);
  }
  return true;
}

State* make_state() {
  auto* it = new State;
  if (const char* failures = std::getenv("FAKECUDA_FAIL"); failures != nullptr && !parse_failures(*it, failures)) {
    std::fprintf(stderr, "fakecuda: FAKECUDA_FAIL=%s is not FUNCTION:CALL[+]:CODE\n", failures);
    std::abort();
  }
  if (const char* delay = std::getenv("FAKECUDA_DELAY_US")) it->delay_us = std::atol(delay);
  if (const char* seconds = std::getenv("FAKECUDA_WATCHDOG_S")) it->watchdog_s = std::atol(seconds);
  if (const char* path = std::getenv("FAKECUDA_LOG"))
    it->log = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return it;
}

void write_log(const State& it, const char* function, Code code) {
  char line[160];
  const int length = std::snprintf(line, sizeof line, "%d %ld %s %d\n", ::getpid(),
                                   static_cast<long>(::syscall(SYS_gettid)), function, code);
  if (length > 0 && ::write(it.log, line, static_cast<std::size_t>(length)) < 0) return;
}

long open_memory_fds() {
  long count = 0;
  DIR* fds = ::opendir("/proc/self/fd");
  if (fds == nullptr) return 0;
  while (const dirent* entry = ::readdir(fds)) {
    char target[512];
    const ssize_t length = ::readlinkat(::dirfd(fds), entry->d_name, target, sizeof target - 1);
    if (length <= 0) continue;
    target[length] = 0;
    if (std::strstr(target, "/memfd:fakecuda:") != nullptr) ++count;
  }
  ::closedir(fds);
  return count;
}

// With FAKECUDA_AUDIT: what is left at the end of a process is said, and the process fails.
__attribute__((destructor)) void audit_at_exit() {
  State& it = state();
  if (std::getenv("FAKECUDA_AUDIT") == nullptr || it.pid != ::getpid()) return;
  Audit audit;
  fakecuda_audit(&audit);
  if (audit.left() == 0 && audit.violations == 0) return;
  std::fprintf(stderr,
               "fakecuda: left at exit: handles %ld, mappings %ld, reservations %ld, allocations %ld, opened %ld, "
               "registrations %ld, contexts %ld, streams %ld, events %ld, modules %ld; violations %ld\n",
               audit.handles, audit.mappings, audit.reservations, audit.allocations, audit.opened, audit.registrations,
               audit.contexts, audit.streams, audit.events, audit.modules, audit.violations);
  for (const std::string& text : it.violations) std::fprintf(stderr, "fakecuda: violation: %s\n", text.c_str());
  ::_exit(86);
}

}  // namespace

// Never destroyed: threads of streams may outlive the end of main.
State& state() {
  static State* const it = make_state();
  return *it;
}

void State::violation(const std::string& text) {
  violations.push_back(text);
  std::fprintf(stderr, "fakecuda: violation: %s\n", text.c_str());
}

std::vector<Context>& context_stack() {
  thread_local std::vector<Context> stack;
  return stack;
}

Context current_context() { return context_stack().empty() ? nullptr : context_stack().back(); }

Code enter(const char* function, Needs needs, const std::function<Code(State&, Lock&)>& body) {
  if (plays_stub()) return kStubLibrary;
  State& it = state();
  // Before the lock: in a forked child another thread of the parent may have held it.
  if (needs != Needs::nothing && it.initialised && it.pid != ::getpid()) return kNotInitialized;
  Lock lock(it.mutex);
  if (it.before == function) {
    it.before.clear();
    lock.unlock();
    it.before_call(it.before_with);
    lock.lock();
  }
  const long call = ++it.calls[function];
  Code code = kSuccess;
  for (const Failure& failure : it.failures) {
    if (failure.function == function && (call == failure.at || (failure.for_ever && call > failure.at)))
      code = failure.code;
  }
  if (code == kSuccess && needs != Needs::nothing && !it.initialised) code = kNotInitialized;
  if (code == kSuccess && needs == Needs::memory && it.machine.strict && current_context() == nullptr)
    code = kInvalidContext;
  if (code == kSuccess && needs == Needs::context) {
    const Context context = current_context();
    if (context == nullptr) code = kInvalidContext;
    else if (context->sticky != 0) code = context->sticky;
    else if (!context->usable()) code = kContextDestroyed;
  }
  if (code == kSuccess) code = body(it, lock);
  if (it.log >= 0) write_log(it, function, code);
  return code;
}

}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API void fakecuda_audit(Audit* audit) {
  State& it = state();
  Lock lock(it.mutex);
  *audit = {};
  audit->handles = static_cast<long>(it.handles.size());
  audit->reservations = static_cast<long>(it.reservations.size());
  for (const auto& [address, mapping] : it.mappings) {
    audit->mappings += mapping.kind == Kind::vmm;
    audit->allocations += mapping.kind == Kind::plain;
    audit->opened += mapping.kind == Kind::opened ? mapping.opens : 0;
    audit->registrations += mapping.kind == Kind::host;
    audit->pins += mapping.pin >= 0;
  }
  for (const auto* all : {&it.contexts, &it.own})
    for (const auto& context : *all) audit->contexts += context->retains;
  audit->streams = static_cast<long>(it.streams);
  audit->events = static_cast<long>(it.events);
  audit->modules = static_cast<long>(it.modules);
  audit->violations = static_cast<long>(it.violations.size());
  audit->fds = open_memory_fds();
}

FAKECUDA_API const char* fakecuda_violation(std::size_t number) {
  State& it = state();
  Lock lock(it.mutex);
  return number < it.violations.size() ? it.violations[number].c_str() : nullptr;
}

FAKECUDA_API void fakecuda_forget_violations() {
  Lock lock(state().mutex);
  state().violations.clear();
}

FAKECUDA_API bool fakecuda_fail(const char* text) {
  Lock lock(state().mutex);
  return parse_failures(state(), text);
}

FAKECUDA_API void fakecuda_clear_failures() {
  Lock lock(state().mutex);
  state().failures.clear();
}

FAKECUDA_API void fakecuda_delay_us(long microseconds) { state().delay_us = microseconds; }

FAKECUDA_API long fakecuda_calls(const char* function) {
  Lock lock(state().mutex);
  return state().calls[function];
}

FAKECUDA_API std::size_t fakecuda_bytes_in_use(int ordinal) {
  State& it = state();
  Lock lock(it.mutex);
  if (!it.valid(ordinal)) return 0;
  return bytes_in_use(it.machine.card, it.gpu(ordinal).index, it.gpu(ordinal).instance);
}

FAKECUDA_API void fakecuda_break_context(int ordinal, int code) {
  State& it = state();
  Lock lock(it.mutex);
  if (it.valid(ordinal)) it.contexts[static_cast<std::size_t>(ordinal)]->sticky = code;
}

FAKECUDA_API void fakecuda_before(const char* function, void (*call)(void* with), void* with) {
  Lock lock(state().mutex);
  state().before = function;
  state().before_call = call;
  state().before_with = with;
}

FAKECUDA_API void fakecuda_spoil(int descriptor) { (void)::lseek(descriptor, kSpoiltAt, SEEK_SET); }
