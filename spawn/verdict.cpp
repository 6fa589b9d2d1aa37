// SPDX-License-Identifier: Apache-2.0
// See verdict.hpp. Texts that programs match are torch's to the letter.
#include "spawn/verdict.hpp"

#include <signal.h>
#include <string.h>

#include "spawn/bytes.hpp"

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
    verdict.failures.push_back(std::move(one));
  }
  verdict.results = in.texts();
  verdict.lent = in.flag();
  if (!in.done()) return error(Status::protocol, "the spawner is of another version of the library");
  return verdict;
}

std::string signal_name(int signal) {
  if (const char* name = ::sigabbrev_np(signal); name != nullptr) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    const int above = signal - SIGRTMIN;
    return above == 0 ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(above);
  }
  return "signal " + std::to_string(signal);
}

std::string message_of(const Failure& failure) {
  const std::string who = "process " + std::to_string(failure.rank);
  switch (failure.kind) {
    case Failure::raised: {
      std::string text = "\n\n-- Process " + std::to_string(failure.rank) + " terminated with the following error:\n";
      if (!failure.trace.empty()) text += failure.trace + (failure.trace.ends_with('\n') ? "" : "\n");
      return text + (failure.type.empty() ? "" : failure.type + ": ") + failure.text;
    }
    case Failure::signalled: {
      const bool known = ::sigabbrev_np(failure.signal) != nullptr;
      return who + " terminated with signal " +
             (known ? signal_name(failure.signal)
                    : std::to_string(failure.signal) + " (" + signal_name(failure.signal) + ")");
    }
    case Failure::exited:
      return who + " terminated with exit code " + std::to_string(failure.exit_code);
    case Failure::unfinished:
      // From outside both look the same: at exit the channel is closed before the end can be seen.
      return who + " exited with code 0 without finishing its function" +
             (failure.text.empty() ? " (or had closed all its descriptors, and could not tell)" : ": " + failure.text);
    case Failure::never_started:
    case Failure::supervisor_lost:
      return failure.text;
  }
  return who + " failed";
}

}  // namespace shmb::spawn
