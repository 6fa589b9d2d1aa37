// SPDX-License-Identifier: Apache-2.0
// See verdict.hpp.
#include "spawn/ranks/verdict.hpp"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "spawn/ranks/bytes.hpp"

namespace shmb::spawn {

std::string Verdict::encode() const {
  Packer out;
  out.number<std::uint8_t>(started).number(why.status).number(why.system_errno).text(why.sentence);
  out.number<std::uint64_t>(failures.size());
  for (const Failure& one : failures) {
    out.number(one.kind).number(one.rank).number(one.pid).number(one.exit_code).number(one.signal);
    out.number<std::uint8_t>(one.core).number<std::uint8_t>(one.ended_by_us).number<std::uint8_t>(one.cut);
    out.number(one.user_ns).number(one.system_ns).number(one.max_rss).number(one.time);
    out.text(one.type).text(one.text).text(one.trace).text(one.message);
    out.number<std::uint64_t>(one.causes.size());
    for (const Cause& cause : one.causes) out.text(cause.type).text(cause.text);
  }
  out.texts(results).number<std::uint8_t>(lent);
  return out.take();
}

Result<Verdict> Verdict::decode(std::string_view bytes) {
  Unpacker in(bytes);
  Verdict verdict;
  verdict.started = in.flag();
  verdict.why.status = in.number<Status>();
  verdict.why.system_errno = in.number<int>();
  verdict.why.sentence = in.text();
  for (auto left = in.number<std::uint64_t>(); left > 0 && in.whole(); --left) {
    Failure one;
    one.kind = in.number<Failure::Kind>();
    one.rank = in.number<std::int32_t>();
    one.pid = in.number<pid_t>();
    one.exit_code = in.number<std::int32_t>();
    one.signal = in.number<std::int32_t>();
    one.core = in.flag();
    one.ended_by_us = in.flag();
    one.cut = in.flag();
    one.user_ns = in.number<std::int64_t>();
    one.system_ns = in.number<std::int64_t>();
    one.max_rss = in.number<std::uint64_t>();
    one.time = in.number<std::int64_t>();
    one.type = in.text();
    one.text = in.text();
    one.trace = in.text();
    one.message = in.text();
    for (auto more = in.number<std::uint64_t>(); more > 0 && in.whole(); --more) {
      std::string type = in.text();
      one.causes.push_back({std::move(type), in.text()});
    }
    verdict.failures.push_back(std::move(one));
  }
  verdict.results = in.texts();
  verdict.lent = in.flag();
  if (!in.done()) return error(Status::protocol, "the spawner is of another version of the library");
  return verdict;
}

bool may_echo(const Failure& failure) { return failure.heard != 0 && failure.time - failure.heard <= kEcho; }

// The time of a death is the time when it was seen here. A rank can get a report of it a little earlier, for example
// from the broker, which sees the end by another socket. Call a failure soon after such a report an echo. It comes
// after the earliest failure that is no echo, if that one came soon enough to be the subject of the report.
void put_in_order(std::vector<Failure>& failures) {
  const auto own = [](const Failure& one) { return !one.ended_by_us && !may_echo(one); };
  std::int64_t first_own = INT64_MAX;
  for (const Failure& one : failures)
    if (own(one)) first_own = std::min(first_own, one.time);
  const auto place = [&](const Failure& one) {
    const bool echoes = !one.ended_by_us && may_echo(one) && first_own - kEcho <= one.heard;
    return std::tuple(one.ended_by_us, echoes ? std::max(one.time, first_own) : one.time, echoes);
  };
  std::ranges::stable_sort(failures, {}, place);
}

std::string signal_name(int signal) {
  if (const char* name = ::sigabbrev_np(signal); name != nullptr) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    const int above = signal - SIGRTMIN;
    return above == 0 ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(above);
  }
  return "signal " + std::to_string(signal);
}

namespace {

std::string signal_text(int signal) {
  return ::sigabbrev_np(signal) != nullptr ? signal_name(signal)
                                           : std::to_string(signal) + " (" + signal_name(signal) + ")";
}

std::string thrown_text(const std::string& type, const std::string& text) {
  return type.empty() ? text : type + ": " + text;
}

std::string on_own_line(const std::string& text) { return text.ends_with('\n') ? text : text + "\n"; }

// The text first, then its causes, then the stack. Programs and people that are used to torch's order look for the text
// at the end. So the text is repeated below a stack.
std::string raised_text(const Failure& failure) {
  constexpr std::size_t kFirst = 1000;
  const std::string what = thrown_text(failure.type, failure.text);
  std::string text = "rank " + std::to_string(failure.rank) + " failed: ";
  if (failure.trace.empty() && failure.causes.empty()) return text + what;
  text += what.size() <= kFirst ? what : what.substr(0, kFirst) + " ...";
  for (const Cause& cause : failure.causes) text += "\ncaused by " + thrown_text(cause.type, cause.text);
  return on_own_line(text) + (failure.trace.empty() ? "" : on_own_line(failure.trace)) + what;
}

// How the rank named `who` ended, where nothing was thrown.
std::string end_text(const std::string& who, const Failure& failure) {
  switch (failure.kind) {
    case Failure::signalled:
      return who + " terminated with signal " + signal_text(failure.signal);
    case Failure::exited:
      return who + " terminated with exit code " + std::to_string(failure.exit_code);
    case Failure::unfinished:
      // From outside both look the same: the channel is closed at exit, before the end can be seen.
      return who + " exited with code 0 without finishing its function" +
             (failure.text.empty() ? " (or had closed all its descriptors, and could not tell)" : ": " + failure.text);
    case Failure::never_started:
    case Failure::supervisor_lost:
      return failure.text;
    case Failure::raised:
      break;
  }
  return who + " failed";
}

}  // namespace

std::string message_of(const Failure& failure) {
  return failure.kind == Failure::raised ? raised_text(failure)
                                         : end_text("rank " + std::to_string(failure.rank), failure);
}

std::string torch_message_of(const Failure& failure) {
  const std::string number = std::to_string(failure.rank);
  if (failure.kind != Failure::raised) return end_text("process " + number, failure);
  return "\n\n-- Process " + number + " terminated with the following error:\n" +
         (failure.trace.empty() ? "" : on_own_line(failure.trace)) + thrown_text(failure.type, failure.text);
}

}  // namespace shmb::spawn
