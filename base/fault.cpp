// SPDX-License-Identifier: Apache-2.0
// The seam's state. Only the seam build has any; see base/fault.hpp.
#include "base/fault.hpp"

#ifdef SHMB_TEST_SEAM

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fault_lives.hpp"
#include "base/text.hpp"

namespace shmb::fault {

namespace {

struct Rule {
  int error;
  long first;  // counts down to 1, the call that fails first
  long times;  // how many are left; negative: all
};

constexpr std::array kNames = {
#define X(name) std::string_view(#name),
    SHMB_CALLS(X)
#undef X
};
constexpr std::size_t kCalls = kNames.size();

std::array<std::atomic<long>, kCalls> counts;
// A child forked while another thread holds the lock must not hang in its next call: without rules there is no lock.
std::atomic<int> rules_held{0};
std::mutex lock;
std::array<std::vector<Rule>, kCalls> rules;
std::atomic<int> pretended_version{0};
std::string fake_gpus;
unsigned lives_that_die = 0, lives_spared = 0;
std::atomic<long> calls_left{0};  // until this process kills itself; 0: it does not

std::optional<Call> call_named(std::string_view name) {
  for (std::size_t i = 0; i < kCalls; ++i)
    if (kNames[i] == name) return static_cast<Call>(i);
  return std::nullopt;
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (err != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int> errno_named(std::string_view name) {
  if (auto value = number(name); value && *value > 0) return value;
  for (int code = 1; code < 134; ++code)
    if (const char* known = ::strerrorname_np(code); known != nullptr && name == known) return code;
  return std::nullopt;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::unexpected<Error> bad(std::string_view part, const char* why) {
  return error(Status::invalid, "seam instruction " + quoted(part) + ": " + why);
}

Result<void> configure_fault(std::string_view part, std::string_view text) {
  const auto fields = split(text, ':');
  if (fields.size() < 2 || fields.size() > 4) return bad(part, "expected fail=CALL:ERRNO[:FIRST[:TIMES]]");
  const auto call = call_named(fields[0]);
  if (!call) return bad(part, "no such call");
  const auto code = errno_named(fields[1]);
  if (!code) return bad(part, "no such errno");
  const auto first = fields.size() > 2 ? number(fields[2]) : 1;
  const auto times = fields.size() > 3 ? number(fields[3]) : 1;
  if (!first || *first < 1 || !times || *times == 0 || *times < -1)
    return bad(part, "FIRST counts from 1, TIMES is a count or -1");
  inject(*call, *code, *first, *times);
  return {};
}

Result<void> configure_kernel(std::string_view part, std::string_view text) {
  const auto fields = split(text, '.');
  if (fields.size() != 2) return bad(part, "expected pretend_kernel=MAJOR.MINOR");
  const auto major = number(fields[0]), minor = number(fields[1]);
  if (!major || !minor || *major < 0 || *minor < 0 || *minor > 999) return bad(part, "not a kernel version");
  pretend_kernel(*major, *minor);
  return {};
}

Result<void> configure_deaths(std::string_view part, std::string_view text) {
  const auto fields = split(text, ':');
  const auto lives = number(fields[0]), spared = fields.size() == 2 ? number(fields[1]) : std::optional(0);
  if (fields.size() > 2 || !lives || *lives < 1 || !spared || *spared < 0)
    return bad(part, "expected die_each=LIVES or die_each=LIVES:SPARED");
  lives_that_die = static_cast<unsigned>(*lives);
  lives_spared = static_cast<unsigned>(*spared);
  return {};
}

Result<void> configure_gpu(std::string_view part, std::string_view text) {
  if (!text.empty() && !text.starts_with('/')) return bad(part, "expected gpu=/ABSOLUTE/FOLDER");
  std::lock_guard guard(lock);
  fake_gpus = text;
  return {};
}

}  // namespace

std::string gpu_root() {
  std::lock_guard guard(lock);
  return fake_gpus;
}

int fails(Call call) {
  const auto index = static_cast<std::size_t>(call);
  counts[index].fetch_add(1, std::memory_order_relaxed);
  if (calls_left.load(std::memory_order_relaxed) > 0 && calls_left.fetch_sub(1) == 1) (void)::kill(::getpid(), SIGKILL);
  if (rules_held.load(std::memory_order_acquire) == 0) return 0;
  std::lock_guard guard(lock);
  int failure = 0;
  for (Rule& rule : rules[index]) {
    if (rule.first > 1) {
      --rule.first;
    } else if (rule.times != 0 && failure == 0) {
      failure = rule.error;
      if (rule.times > 0) --rule.times;
    }
  }
  return failure;
}

void begin_life(unsigned lives_before) {
  if (lives_before < lives_spared) return;
  lives_before -= lives_spared;
  if (lives_before < lives_that_die) calls_left = static_cast<long>(lives_before) + 1;
}

void inject(Call call, int err, int first, int times) {
  std::lock_guard guard(lock);
  rules[static_cast<std::size_t>(call)].push_back({err, first, times});
  rules_held.fetch_add(1, std::memory_order_release);
}

void clear() {
  std::lock_guard guard(lock);
  for (auto& list : rules) list.clear();
  for (auto& count : counts) count = 0;
  rules_held = 0;
}

long count(Call call) { return counts[static_cast<std::size_t>(call)]; }

void pretend_kernel(int major, int minor) { pretended_version = major * 1000 + minor; }

int pretended() { return pretended_version; }

bool pretends_before(int major, int minor) {
  const int version = pretended_version.load(std::memory_order_relaxed);
  return version != 0 && version < major * 1000 + minor;
}

Result<void> configure(std::string_view text) {
  for (std::string_view part : split(text, ';')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    Result<void> done;
    if (key == "fail") done = configure_fault(part, value);
    else if (key == "pretend_kernel") done = configure_kernel(part, value);
    else if (key == "gpu") done = configure_gpu(part, value);
    else if (key == "die_each") done = configure_deaths(part, value);
    else return bad(part, "known are 'fail', 'pretend_kernel', 'gpu' and 'die_each'");
    if (!done) return done;
  }
  return {};
}

}  // namespace shmb::fault

#endif
