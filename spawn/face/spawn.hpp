// SPDX-License-Identifier: Apache-2.0
// Ranks in C++, header-only over shmbroker_spawn.h: functions by name, arguments as msgpack (regions and pools among
// them), errors as exceptions. It follows shmbroker.hpp: a function throws shmbroker::Error, and its `try_` form
// returns a Result with the status. It needs exceptions, also for the `try_` forms. Types that only msgpack-cxx can
// pack need spawn_msgpack.hpp as well, or <msgpack.hpp> before this file.
//
// A program that spawns registers its functions and begins its main with
//     if (auto rc = shmbroker::spawn_child(argc, argv)) return *rc;
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_SPAWN_HPP)
#define SHMBROKER_SPAWN_HPP

#include "shmbroker.hpp"

#if !SHMBROKER_EXCEPTIONS
#error "shmbroker/spawn.hpp needs exceptions; without, use shmbroker/shmbroker_spawn.h"
#else

#include <cxxabi.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "shmbroker_spawn.h"
#include "spawn_values.hpp"
#include "throw_point.hpp"

namespace shmbroker {

/// How ranks are made: a new program, a fork of this process, or a fork of a server that has one thread.
enum class StartMethod : std::uint32_t {
  spawn = SHMB_START_SPAWN,
  fork = SHMB_START_FORK,
  forkserver = SHMB_START_FORKSERVER,
};
/// Where a rank's output goes.
enum class Stdio : std::uint32_t {
  inherit = SHMB_STDIO_INHERIT,
  null = SHMB_STDIO_NULL,
  files = SHMB_STDIO_FILES,
  prefix = SHMB_STDIO_PREFIX,
};
/// The end of a rank. See enum shmb_failure_kind.
enum class FailureKind : std::uint32_t {
  raised = SHMB_FAILURE_RAISED,
  exited = SHMB_FAILURE_EXITED,
  signalled = SHMB_FAILURE_SIGNALLED,
  unfinished = SHMB_FAILURE_UNFINISHED,
  never_started = SHMB_FAILURE_NEVER_STARTED,
  supervisor_lost = SHMB_FAILURE_SUPERVISOR_LOST,
};
/// Whether the ranks run, or how they ended.
enum class RanksState : std::uint32_t {
  running = SHMB_PROCESSES_RUNNING,
  succeeded = SHMB_PROCESSES_SUCCEEDED,
  failed = SHMB_PROCESSES_FAILED,
};

/// How ranks are started, and ended after a failure. See shmb_spawn_options for the fields.
struct SpawnOptions {
  int nprocs = 1;
  bool join = true;     // spawn() returns when all have ended
  bool daemon = false;  // the context's destructor ends the ranks instead of waiting for them
  StartMethod start_method = StartMethod::spawn;
  Timeout voluntary{};      // after a first failure, before SIGTERM; default: none
  Timeout grace{};          // between SIGTERM and SIGKILL; default: 30 s
  Timeout start_timeout{};  // until a rank has reached spawn_child; default: 10 s
  Timeout timeout{};        // until all have started; default: 30 s
  bool no_group = false;
  Text group{};  // name; empty: made from the program
  std::uint64_t limit_bytes = 0;
  Text socket{};                           // the broker's; empty: searched
  std::vector<std::string> environment{};  // "NAME=value"
  Text directory{};
  Stdio stdio = Stdio::inherit;
  Text stdio_path{};
  int shards = 1, shard = 0;
  Text master_addr{};
  std::uint16_t master_port = 0;
  Text program{};                      // a program other than this one, with spawn_child in its main
  std::vector<std::string> command{};  // its arguments
};

/// The end of one rank that failed. A plain value. Times are nanoseconds; `time_ns` is CLOCK_MONOTONIC.
struct RankFailure {
  FailureKind kind = FailureKind::exited;
  int rank = -1, pid = 0, exit_code = 0, signal = 0;
  bool core = false, ended_by_us = false, cut = false;
  std::int64_t user_ns = 0, system_ns = 0, time_ns = 0;
  std::uint64_t max_rss_bytes = 0;
  std::string signal_name, message, type, text, trace;
  std::vector<RaisedCause> causes{};  // the exceptions that it was thrown from, the latest first
  friend bool operator==(const RankFailure&, const RankFailure&) = default;

  /// From the C form. Throws std::bad_alloc.
  [[gnu::cold]] static RankFailure from_c(const shmb_failure& c) {
    RankFailure one;
    one.kind = static_cast<FailureKind>(c.kind);
    one.rank = c.rank, one.pid = c.pid, one.exit_code = c.exit_code, one.signal = c.signal;
    one.core = c.core != 0, one.ended_by_us = c.ended_by_us != 0, one.cut = c.cut != 0;
    one.user_ns = c.user_ns, one.system_ns = c.system_ns, one.time_ns = c.time_ns;
    one.max_rss_bytes = c.max_rss_bytes;
    one.signal_name = c.signal_name, one.message = c.message;
    one.type = c.type, one.text = c.text, one.trace = c.trace;
    if (one.kind == FailureKind::never_started || one.kind == FailureKind::unfinished) {  // the library's words
      one.message = in_words_of_cxx(one.message);
      one.text = in_words_of_cxx(one.text);
    }
    for (std::size_t i = 0; i < c.cause_count; ++i) one.causes.push_back({c.causes[i].type, c.causes[i].text});
    return one;
  }
  /// A sentence of the library, with the names of this API. Throws std::bad_alloc.
  [[gnu::cold]] static std::string in_words_of_cxx(const std::string& sentence) {
    shmb_error error{};
    if (sentence.size() >= sizeof error.sentence || sentence.find("shmb_") == sentence.npos) return sentence;
    (void)sentence.copy(error.sentence, sentence.size());
    return Error(error).what();
  }
  /// Packed as an array, which rethrow_msgpack() reads. Throws std::bad_alloc.
  [[gnu::cold]] void pack_value(detail::Packer& packer) const {
    packer.array(18);
    packer.whole(static_cast<std::uint32_t>(kind));
    for (const int one : {rank, pid, exit_code, signal}) packer.integer(one);
    for (const bool one : {core, ended_by_us, cut}) packer.boolean(one);
    for (const std::int64_t one : {user_ns, system_ns, time_ns}) packer.integer(one);
    packer.whole(max_rss_bytes);
    for (const std::string* one : {&signal_name, &message, &type, &text, &trace}) packer.text(*one);
    packer.array(causes.size());
    for (const RaisedCause& one : causes) {
      packer.array(2);
      packer.text(one.type), packer.text(one.text);
    }
  }
  /// The reverse. Throws std::runtime_error or std::invalid_argument for other bytes.
  [[gnu::cold]] void unpack_value(detail::Reader& in) {
    using detail::Codec;
    if (in.array() != 18) throw detail::TypeError();
    kind = static_cast<FailureKind>(Codec<std::uint32_t>::unpack(in));
    for (int* one : {&rank, &pid, &exit_code, &signal}) *one = Codec<int>::unpack(in);
    for (bool* one : {&core, &ended_by_us, &cut}) *one = Codec<bool>::unpack(in);
    for (std::int64_t* one : {&user_ns, &system_ns, &time_ns}) *one = Codec<std::int64_t>::unpack(in);
    max_rss_bytes = Codec<std::uint64_t>::unpack(in);
    for (std::string* one : {&signal_name, &message, &type, &text, &trace}) *one = in.bytes();
    causes.clear();
    for (std::size_t left = in.array(); left > 0; --left) {
      if (in.array() != 2) throw detail::TypeError();
      RaisedCause& one = causes.emplace_back();
      one.type = in.bytes(), one.text = in.bytes();
    }
  }
};

namespace detail {
// The failures of an exception. Copies share them, so a copy throws nothing. <memory> would take a tenth of the time
// that this header takes to compile.
class SharedFailures {
 public:
  explicit SharedFailures(std::vector<RankFailure>&& failures) : held_(new Held{std::move(failures)}) {}
  SharedFailures(const SharedFailures& other) noexcept : held_(other.held_) {
    __atomic_fetch_add(&held_->users, 1, __ATOMIC_RELAXED);
  }
  SharedFailures& operator=(const SharedFailures& other) noexcept {
    SharedFailures copy(other);
    std::swap(held_, copy.held_);
    return *this;
  }
  ~SharedFailures() {
    if (__atomic_sub_fetch(&held_->users, 1, __ATOMIC_ACQ_REL) == 0) delete held_;
  }
  const std::vector<RankFailure>& operator*() const noexcept { return held_->failures; }
  const std::vector<RankFailure>* operator->() const noexcept { return &held_->failures; }

 private:
  struct Held {
    std::vector<RankFailure> failures;
    int users = 1;
  };
  Held* held_;
};
}  // namespace detail

/// The ranks failed. It holds the first failure in time and all others after it. A failure that only echoes another
/// rank's end comes after that one. It survives msgpack with all its fields. A plain value: copies share the failures.
class ProcessException : public std::runtime_error {
 public:
  /// From the failures, of which there is at least one. Throws std::out_of_range for none.
  explicit ProcessException(std::vector<RankFailure> failures)
      : std::runtime_error(failures.at(0).message), failures_(std::move(failures)) {}
  /// The first failure, all failures, and the rank and process of the first. They live as long as a copy of this.
  const RankFailure& failure() const noexcept { return failures_->front(); }
  const std::vector<RankFailure>& failures() const noexcept { return *failures_; }
  int error_index() const noexcept { return failure().rank; }
  int error_pid() const noexcept { return failure().pid; }
  /// The failures as bytes, for rethrow_msgpack() in another process. Throws std::bad_alloc.
  std::string to_msgpack() const {
    detail::Packer packer;
    detail::Codec<std::vector<RankFailure> >::pack(packer, *failures_, {});
    return packer.take();
  }

 private:
  detail::SharedFailures failures_;
};
/// The function of the rank threw. A plain value.
class ProcessRaisedException : public ProcessException {
 public:
  using ProcessException::ProcessException;
};
/// The rank ended by exit code or signal, or without finishing its function. A plain value.
class ProcessExitedException : public ProcessException {
 public:
  using ProcessException::ProcessException;
  /// How the rank ended. The code of a signal is its number, negative; the name is empty without a signal.
  int exit_code() const noexcept { return failure().exit_code; }
  const std::string& signal_name() const noexcept { return failure().signal_name; }
};

/// Throws the exception that fits the first failure: ProcessRaisedException, ProcessExitedException or
/// ProcessException.
[[noreturn, gnu::cold]] inline void throw_failures(std::vector<RankFailure> failures) {
  switch (failures.at(0).kind) {
    case FailureKind::raised:
      throw ProcessRaisedException(std::move(failures));
    case FailureKind::exited:
    case FailureKind::signalled:
    case FailureKind::unfinished:
      throw ProcessExitedException(std::move(failures));
    case FailureKind::never_started:
    case FailureKind::supervisor_lost:
      break;
  }
  throw ProcessException(std::move(failures));
}
/// Throws the exception again that to_msgpack() packed. Throws std::invalid_argument or std::runtime_error for other
/// bytes.
[[noreturn, gnu::cold]] inline void rethrow_msgpack(std::string_view bytes) {
  detail::Reader in(bytes);
  throw_failures(detail::Codec<std::vector<RankFailure> >::unpack(in));
}

namespace detail {

template <>
struct Closer<shmb_processes> {
  static void close(shmb_processes* handle) noexcept { shmb_processes_free(handle); }
};

// A ticket for a region that a function returns. The region lives until the parent takes it, and the ticket ends with
// the parent.
inline Ticket lent_to_parent(const RegionBase& region, Rights rights) {
  std::uint8_t raw[16];
  shmb_error error;
  if (shmb_rank_lend(region.c(), static_cast<std::uint32_t>(rights), 1, 0, 0, raw, nullptr, &error) != SHMB_OK)
    throw Error(error);
  return Ticket(Token(raw));
}

// A function by name. `address` is the function that was registered, and `invoke` calls it with its type.
struct Registered {
  std::string name;
  void (*address)() = nullptr;
  std::string (*invoke)(const Registered& self, int rank, Reader& arguments, std::size_t count) = nullptr;
  bool twice = false;
};
// By name.
inline std::vector<Registered>& registry() {
  static auto* const functions = new std::vector<Registered>;
  return *functions;
}
[[gnu::cold]] inline void enter(std::string_view name, void (*address)(), decltype(Registered::invoke) invoke) {
  auto place = registry().begin();
  while (place != registry().end() && place->name < name) ++place;
  if (place != registry().end() && place->name == name) {
    place->twice |= place->address != address;
    place->address = address;
    place->invoke = invoke;
  } else {
    registry().insert(place, {std::string(name), address, invoke});
  }
}

[[noreturn, gnu::cold]] inline void refuse_count(std::string_view name, std::size_t takes, std::size_t given) {
  throw std::invalid_argument(joined({"function \"", name, "\" takes ", std::to_string(takes),
                                      " arguments besides the rank, ", std::to_string(given), " were given"}));
}
template <class R, class... P, std::size_t... n>
[[gnu::noinline]] std::string invoke(const std::string& name, R (*function)(int, P...), int rank, Reader& arguments,
                                     std::size_t count, std::index_sequence<n...>) {
  bottom_of_stack = __builtin_return_address(0);
  if (count != sizeof...(P)) refuse_count(name, sizeof...(P), count);
  std::tuple<Kept<P>...> values{unpack_argument<Kept<P> >(name, n + 1, arguments)...};
  Packer packer;
  if constexpr (std::is_void_v<R>) {
    function(rank, passed<P>(std::get<n>(values))...);
  } else {
    Codec<std::decay_t<R> >::pack(packer, function(rank, passed<P>(std::get<n>(values))...),
                                  PackContext{.lend = &lent_to_parent});
  }
  return packer.take();
}

[[gnu::cold]] inline std::string call_registered(const shmb_rank_info& info) {
  const std::string_view name = info.function;
  const Registered* found = nullptr;
  std::string known;
  for (const Registered& one : registry()) {
    if (one.name == name) found = &one;
    if (!known.empty()) known += ", ";
    known += one.name;
  }
  if (found == nullptr)
    throw std::invalid_argument(joined({"no function \"", name, "\" is registered in this program (registered: ",
                                        known.empty() ? "none" : std::string_view(known), ")"}));
  if (found->twice) throw std::invalid_argument(joined({"two functions are registered as \"", name, "\""}));
  const std::string_view bytes(static_cast<const char*>(info.arguments), info.arguments_length);
  if (!Reader::is_value(bytes)) throw Malformed();
  Reader arguments(bytes);
  const Reader::Item head = arguments.take();
  if (head.kind != Reader::Kind::array) throw std::invalid_argument("the arguments are no array of values");
  return found->invoke(*found, info.rank, arguments, static_cast<std::size_t>(head.number));
}

// A frame of its own, at which the stack text is cut.
[[gnu::noinline, gnu::cold]] inline int run_rank(const shmb_rank_info& info) {
  bottom_of_stack = __builtin_return_address(0);
  const auto raise = [&](const Thrown& thrown) {
    const std::string trace = joined({"In function \"", info.function, "\" of rank ", std::to_string(info.rank), " of ",
                                      std::to_string(info.world_size), ":\n", throw_point_text()});
    const std::vector<shmb_cause> causes = thrown.c();
    shmb_raised raised{};
    raised.size = sizeof raised;
    raised.type = thrown.type.c_str(), raised.text = thrown.text.c_str(), raised.trace = trace.c_str();
    raised.causes = causes.data(), raised.cause_count = causes.size();
    (void)shmb_rank_raise_from(&raised, nullptr);
  };
  try {
    const std::string result = call_registered(info);
    shmb_error error;
    if (shmb_rank_finish(result.data(), result.size(), &error) == SHMB_OK) return 0;
    raise({"shmbroker::Error", error.sentence, {}});
  } catch (const AskedAtThrow&) {  // first, and never entered
#ifdef __GLIBCXX__
  } catch (const abi::__forced_unwind&) {  // pthread_exit: must go on
    throw;
#endif
  } catch (...) {
    raise(thrown_now());
  }
  return 1;
}

inline int run_forked_rank(void*) {
  shmb_rank_info info{};
  info.size = sizeof info;
  return shmb_rank_enter(nullptr, &info, nullptr) == SHMB_OK ? run_rank(info) : 1;
}

[[gnu::cold]] inline std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  for (const std::string& text : texts) out.push_back(text.c_str());
  out.push_back(nullptr);
  return out;
}
inline const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

}  // namespace detail

namespace detail {
template <class R, class... P>
bool register_plain(std::string_view name, R (*function)(int, P...)) {
  enter(name, reinterpret_cast<void (*)()>(function),
        [](const Registered& self, int rank, Reader& arguments, std::size_t count) {
          return invoke(self.name, reinterpret_cast<R (*)(int, P...)>(self.address), rank, arguments, count,
                        std::index_sequence_for<P...>());
        });
  return true;
}
template <class F>
concept RankFunction = requires(std::string_view name, F&& function) { register_plain(name, +function); };
}  // namespace detail

/// Makes a function callable in ranks under a name. Its first parameter is the rank. Its return value goes to the
/// parent. Call it before spawn_child(), as the macro below does. Returns true. Throws std::bad_alloc.
template <class R, class... P>
bool register_function(std::string_view name, R (*function)(int, P...)) {
  return detail::register_plain(name, function);
}
/// The same for an object that converts to such a function: a lambda without captures, a function that is noexcept.
/// Throws std::bad_alloc.
template <class F>
bool register_function(std::string_view name, F&& function) {
  static_assert(
      detail::RankFunction<F>,
      "a rank's function is a plain function, or a lambda without captures, whose first parameter is int: the "
      "rank");
  if constexpr (detail::RankFunction<F>) return detail::register_plain(name, +function);
  else return false;
}
// At namespace scope, for a function with a name: SHMBROKER_SPAWN_FUNCTION("train", train);
#define SHMBROKER_SPAWN_JOIN2(a, b) a##b
#define SHMBROKER_SPAWN_JOIN(a, b) SHMBROKER_SPAWN_JOIN2(a, b)
#define SHMBROKER_SPAWN_FUNCTION(name, function)                                             \
  [[maybe_unused]] static const bool SHMBROKER_SPAWN_JOIN(shmbroker_spawned_, __COUNTER__) = \
      ::shmbroker::register_function(name, function)

/// The first line of main. In a rank it runs the rank's function and returns main's return value. Otherwise it returns
/// nullopt. The fork server calls `preload` once, before it makes the ranks and while it has one thread. Throws what
/// `preload` throws; a throw of the rank's function goes to the parent.
inline std::optional<int> spawn_child(int /*argc*/, char** /*argv*/, void (*preload)() = nullptr) {
  shmb_rank_info info{};
  info.size = sizeof info;
  const int status = shmb_rank_enter(preload, &info, nullptr);
  if (status == SHMB_E_NOT_FOUND || (status == SHMB_OK && *info.function == '\0')) return std::nullopt;
  if (status != SHMB_OK) return 1;
  return detail::run_rank(info);
}

namespace detail {
class SessionOfRanks final : public SessionSource {
 public:
  explicit SessionOfRanks(shmb_processes* ranks) noexcept : ranks_(ranks) {}
  const Session& session() override {
    if (session_) return *session_;
    shmb_session* raw = nullptr;
    shmb_error why;
    const int status = shmb_processes_session(ranks_, &raw, &why);
    if (status == SHMB_E_NOT_FOUND) return rank_session();  // the ranks had only the environment too
    if (status != SHMB_OK) throw Error(why);
    return session_.emplace(raw);
  }

 private:
  shmb_processes* ranks_;
  std::optional<Session> session_;
};
}  // namespace detail

/// A set of ranks. Ownership: it owns the ranks and moves only; the destructor waits for them, or ends them
/// (SpawnOptions::daemon). Threads: any thread may call it, also several at once. Lifetime: independent of other
/// handles.
class ProcessContext {
 public:
  /// Takes over a C handle. `lent`: what goes when the ranks have ended.
  explicit ProcessContext(shmb_processes* adopted, detail::Handle<detail::Lent> lent = {}, int first_rank = 0) noexcept
      : first_rank_(first_rank), lent_(std::move(lent)), handle_(adopted) {}
  ProcessContext(ProcessContext&&) noexcept = default;
  // The ranks of the old value end first. Regions that were lent to them stay until then.
  ProcessContext& operator=(ProcessContext&& other) noexcept {
    first_rank_ = other.first_rank_;
    handle_ = std::move(other.handle_);
    lent_ = std::move(other.lent_);
    return *this;
  }

  /// Waits until all ranks have ended, without limit by default. The outcome never changes once it is known.
  /// `voluntary` as in the options, from now on; default: as it was. At the deadline the state is `running`. Status:
  /// invalid.
  Result<RanksState> try_join(Timeout timeout = {}, Timeout voluntary = {}) noexcept {
    const auto begun = std::chrono::steady_clock::now();
    std::uint32_t state = 0;
    shmb_error error;
    if (shmb_processes_join(handle_.get(), timeout.nanoseconds(), voluntary.nanoseconds(), &state, &error) != SHMB_OK)
      return Error(error);
    if (state != SHMB_PROCESSES_RUNNING && lent_.get() != nullptr) {
      std::chrono::nanoseconds left = detail::Lent::kPatience;
      if (timeout == Timeout::no_wait()) left = {};
      else if (timeout.nanoseconds() > 0)
        left = std::chrono::nanoseconds(timeout.nanoseconds()) - (std::chrono::steady_clock::now() - begun);
      lent_.get()->revoke(left);
    }
    return static_cast<RanksState>(state);
  }
  /// True: all have ended well. False: the deadline passed with ranks left. Throws ProcessException if a rank failed,
  /// the same one at each call, and Error for other failures.
  bool join(Timeout timeout = {}, Timeout voluntary = {}) {
    const RanksState state = try_join(timeout, voluntary).value();
    if (state == RanksState::failed) throw_failures(failures());
    return state == RanksState::succeeded;
  }
  /// The failures after the end: the cause first, ranks that the supervisor ended last. Empty while ranks run, and
  /// after success. Throws std::bad_alloc.
  [[gnu::cold]] std::vector<RankFailure> failures() const {
    std::vector<RankFailure> all(shmb_processes_failures(handle_.get()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      shmb_failure one{};
      one.size = sizeof one;
      if (shmb_processes_failure(handle_.get(), i, &one, nullptr) == SHMB_OK) all[i] = RankFailure::from_c(one);
    }
    return all;
  }
  /// The process numbers by local rank. Throws std::bad_alloc.
  std::vector<int> pids() const {
    std::size_t count = 0;
    (void)shmb_processes_pids(handle_.get(), nullptr, 0, &count, nullptr);
    std::vector<int> all(count);
    (void)shmb_processes_pids(handle_.get(), all.data(), all.size(), &count, nullptr);
    return all;
  }
  /// Sends SIGTERM, and after the grace SIGKILL, to all ranks; or SIGKILL `at_once`. It does not wait.
  void end(bool at_once = false) noexcept { (void)shmb_processes_end(handle_.get(), at_once, nullptr); }
  /// Returns the value that the function of a local rank returned. Throws Error: no such value, or another type. It
  /// attaches the regions in it. Throws Error with not_found before the end.
  template <class T>
  T result(int local_rank) const {
    const void* data = nullptr;
    std::uint64_t length = 0;
    shmb_error error;
    if (shmb_processes_result(handle_.get(), local_rank, &data, &length, &error) != SHMB_OK) throw Error(error);
    // Attaches by the session to which the ranks' tickets for their parent are bound, or by one at the same broker.
    detail::SessionOfRanks source(handle_.get());
    const detail::AttachBy by(source);
    return detail::unpack_result<T>(first_rank_ + local_rank, data, static_cast<std::size_t>(length));
  }
  /// The C handle, which this object keeps.
  shmb_processes* c() const noexcept { return handle_.get(); }

 private:
  int first_rank_;                     // the rank of local rank 0
  detail::Handle<detail::Lent> lent_;  // outlives the ranks
  detail::Handle<shmb_processes> handle_;
};
using SpawnContext = ProcessContext;

namespace detail {

[[gnu::cold]] inline Result<ProcessContext> start(const SpawnOptions& options, std::uint32_t method,
                                                  std::string_view function, const std::string& arguments,
                                                  Handle<Lent> lent = {}) {
  shmb_spawn_options c{};
  c.size = sizeof c;
  c.method = method;
  c.flags =
      (options.no_group ? unsigned{SHMB_SPAWN_NO_GROUP} : 0U) | (options.daemon ? unsigned{SHMB_SPAWN_DAEMON} : 0U);
  c.nprocs = options.nprocs, c.shards = options.shards, c.shard = options.shard;
  c.stdio = static_cast<std::uint32_t>(options.stdio), c.stdio_path = or_null(options.stdio_path);
  const CText name(function);
  c.function = name.get();
  c.arguments = arguments.data(), c.arguments_length = arguments.size();
  const auto command = pointers(options.command), environment = pointers(options.environment);
  if (!options.command.empty()) c.command = command.data();
  c.program = or_null(options.program);
  c.environment = environment.data();
  c.directory = or_null(options.directory);
  c.group = or_null(options.group), c.group_limit_bytes = options.limit_bytes, c.socket = or_null(options.socket);
  c.master_addr = or_null(options.master_addr), c.master_port = options.master_port;
  c.voluntary_ns = options.voluntary.nanoseconds();
  c.grace_ns = options.grace.nanoseconds();
  c.start_timeout_ns = options.start_timeout.nanoseconds();
  c.timeout_ns = options.timeout.nanoseconds();
  c.entry = run_forked_rank;
  shmb_processes* raw = nullptr;
  shmb_error error;
  if (shmb_spawn(&c, &raw, &error) != SHMB_OK) return Error(error);
  return ProcessContext(raw, std::move(lent), options.shard * options.nprocs);
}

// How long ranks have to begin, and a margin; an hour at most.
inline Timeout attach_time(const SpawnOptions& options) {
  using std::chrono::nanoseconds;
  constexpr nanoseconds kMargin = std::chrono::minutes(1), kMost = std::chrono::hours(1);
  const auto time_of = [&](Timeout given, std::int64_t by_default) {
    return least(kMost, nanoseconds(given == Timeout() ? by_default : given.nanoseconds()));
  };
  return least(kMost, time_of(options.timeout, SHMB_SPAWN_TIMEOUT) +
                          time_of(options.start_timeout, SHMB_RANK_START_TIMEOUT) + kMargin);
}

}  // namespace detail

/// Starts ranks of a registered function and returns when they run. Regions among the arguments are lent to the ranks.
/// After an error no rank is left. Statuses: invalid, system (a program that cannot be executed), limit (too many bytes
/// of arguments), no_broker, exists (the group's name), deadline. Throws what packing of an argument throws.
template <class... A>
Result<ProcessContext> try_start_processes(std::string_view function, const SpawnOptions& options,
                                           const A&... arguments) {
  try {
    detail::Handle<detail::Lent> lent(new detail::Lent);
    const detail::PackContext context{static_cast<std::uint32_t>(options.nprocs < 1 ? 1 : options.nprocs),
                                      detail::attach_time(options), lent.get()};
    const std::string packed = detail::pack_all(context, arguments...);
    return detail::start(options, static_cast<std::uint32_t>(options.start_method), function, packed, std::move(lent));
  } catch (const Error& error) {  // a region without the right to share it
    return error;
  }
}
/// The same, and waits for the ranks unless options.join is false. Throws Error with the same status; ProcessException
/// if a rank failed.
template <class... A>
ProcessContext start_processes(std::string_view function, const SpawnOptions& options, const A&... arguments) {
  ProcessContext context = try_start_processes(function, options, arguments...).value();
  if (options.join) context.join();
  return context;
}
/// As torch's spawn: waits for the ranks unless options.join is false. Throws ProcessException if a rank failed.
template <class... A>
ProcessContext spawn(std::string_view function, const SpawnOptions& options, const A&... arguments) {
  return start_processes(function, options, arguments...);
}
/// Starts ranks of any command: `options.command` with its arguments. Statuses: those of try_start_processes(). Throws
/// std::bad_alloc.
inline Result<ProcessContext> try_spawn_command(const SpawnOptions& options) {
  return detail::start(options, SHMB_START_COMMAND, {}, {});
}
/// The same, and waits for the ranks unless options.join is false. Throws Error with the same status; ProcessException
/// if a rank failed.
inline ProcessContext spawn_command(const SpawnOptions& options) {
  ProcessContext context = try_spawn_command(options).value();
  if (options.join) context.join();
  return context;
}

// Calls between the ranks of one spawn. They wait at most 5 minutes by default. Status::peer_gone names a rank that is
// gone.
namespace ranks {

namespace detail {
struct Bytes {
  void* bytes;
  ~Bytes() { shmb_bytes_free(bytes); }
};
using shmbroker::detail::CText;
inline void check(int status, const shmb_error& error) {
  if (status != SHMB_OK) throw Error(error);
}
template <class T>
T unpacked(const void* data, std::size_t length) {
  shmbroker::detail::Reader in(data, length);
  if (!in.is_value({static_cast<const char*>(data), length}) ||
      in.peek().kind != shmbroker::detail::Reader::Kind::array || in.array() != 1)
    throw std::invalid_argument(
        "what another rank gave is no value of shmbroker::ranks: a program in C or another "
        "language sent bare bytes");
  return shmbroker::detail::unpack_argument<T>("broadcast", 1, in);
}
inline shmb_rank_info info() {
  shmb_rank_info info{};
  info.size = sizeof info;
  shmb_error error;
  check(shmb_rank_enter(nullptr, &info, &error), error);
  return info;
}

// Brings a value to all ranks. A region travels as a ticket that ends with the session of the rank that lends it, so
// ranks that are killed leave none. Therefore that rank waits until the others have attached.
template <class T>
class Exchange {
 public:
  Exchange(const shmb_rank_info& info, Timeout timeout, std::string_view name)
      : uses_(static_cast<std::uint32_t>(info.local_world_size)),
        whole_(timeout == Timeout() ? SHMB_RANK_WAIT : timeout.nanoseconds()),
        name_("\x01taken:" + std::string(name)) {}
  shmbroker::detail::PackContext context() {
    constexpr std::chrono::nanoseconds kMost = std::chrono::hours(24);
    return {uses_, Timeout(shmbroker::detail::least(whole_, kMost) + std::chrono::minutes(1)), &lent_};
  }
  template <class Unpack>
  auto take(bool lends, Unpack&& unpack) {
    if constexpr (!std::is_base_of_v<RegionBase, T>) {
      return unpack();
    } else {
      // A rank that could not attach arrives all the same, so the others need not wait for its end.
      std::optional<decltype(unpack())> taken;
      std::exception_ptr failed;
      try {
        taken.emplace(unpack());
      } catch (...) {
        failed = std::current_exception();
      }
      const std::chrono::nanoseconds left = whole_ - (std::chrono::steady_clock::now() - begun_);
      shmb_error error;
      const int status = shmb_rank_barrier(name_.c_str(), left.count() > 0 ? left.count() : 1, &error);
      if (failed) std::rethrow_exception(failed);
      if (lends) check(status, error);
      return std::move(*taken);
    }
  }

 private:
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const std::uint32_t uses_;
  const std::chrono::nanoseconds whole_;
  const std::string name_;
  shmbroker::detail::Lent lent_;
};
}  // namespace detail

// The type that a value has where it arrives.
template <class T>
using Taken = typename shmbroker::detail::AsValue<T>::type;

/// The rank of this process, and how many there are. Each throws Error with not_found if this process is no rank.
inline int rank() { return detail::info().rank; }
inline int world_size() { return detail::info().world_size; }

/// No rank returns before all have called. Ranks call under one name in the same order. Throws Error with deadline,
/// peer_gone (the sentence names the rank) or not_found (this process is no rank).
inline void barrier(Timeout timeout = {}, std::string_view name = {}) {
  shmb_error error;
  detail::check(shmb_rank_barrier(detail::CText(name).get(), timeout.nanoseconds(), &error), error);
}
/// Every rank gets the root's value. It can be anything that may be an argument of a function. A text arrives as a
/// std::string, also from a std::string_view or a literal. For a region the other ranks pass an empty one
/// (`Region(nullptr)`). Every rank gets a handle of its own, and the call returns when all have attached. At most 1
/// MiB. Throws Error as barrier(), or with limit; and what packing throws.
template <class T>
Taken<T> broadcast(const T& value, int root = 0, Timeout timeout = {}, std::string_view name = {}) {
  const shmb_rank_info info = detail::info();
  detail::Exchange<T> exchange(info, timeout, name);
  const bool lends = info.local_rank == root;
  std::string mine;
  if (lends) mine = shmbroker::detail::pack_all(exchange.context(), value);
  void* data = nullptr;
  std::uint64_t length = 0;
  shmb_error error;
  detail::check(shmb_rank_broadcast(detail::CText(name).get(), root, mine.data(), mine.size(), timeout.nanoseconds(),
                                    &data, &length, &error),
                error);
  const detail::Bytes owned{data};
  return exchange.take(lends, [&] { return detail::unpacked<Taken<T> >(data, length); });
}
/// Every rank gets all values, by local rank. All together they have at most 16 MiB. Throws as broadcast().
template <class T>
std::vector<Taken<T> > all_gather(const T& value, Timeout timeout = {}, std::string_view name = {}) {
  const shmb_rank_info info = detail::info();
  detail::Exchange<T> exchange(info, timeout, name);
  const std::string mine = shmbroker::detail::pack_all(exchange.context(), value);
  void* data = nullptr;
  std::uint64_t* offsets = nullptr;
  shmb_error error;
  detail::check(shmb_rank_all_gather(detail::CText(name).get(), mine.data(), mine.size(), timeout.nanoseconds(), &data,
                                     &offsets, &error),
                error);
  const detail::Bytes owned{data};
  const detail::Bytes places{offsets};
  return exchange.take(true, [&] {
    std::vector<Taken<T> > all;
    for (int i = 0; i < info.local_world_size; ++i)
      all.push_back(
          detail::unpacked<Taken<T> >(static_cast<const char*>(data) + offsets[i], offsets[i + 1] - offsets[i]));
    return all;
  });
}

/// The store: small values by key, up to 1 MiB each and 64 MiB in all. set() replaces a value. Throws Error with limit,
/// peer_gone (the supervisor has ended) or not_found (this process is no rank).
inline void set(std::string_view key, std::string_view value) {
  shmb_error error;
  detail::check(shmb_rank_set(detail::CText(key).get(), value.data(), value.size(), &error), error);
}
/// The value, or none. Throws Error with peer_gone.
inline std::optional<std::string> get(std::string_view key) {
  void* data = nullptr;
  std::uint64_t length = 0;
  shmb_error error;
  const int status = shmb_rank_get(detail::CText(key).get(), &data, &length, &error);
  if (status == SHMB_E_NOT_FOUND) return std::nullopt;
  detail::check(status, error);
  const detail::Bytes owned{data};
  return std::string(static_cast<const char*>(data), length);
}
/// The value, as soon as a rank has set it. Throws Error with deadline or peer_gone.
inline std::string wait(std::string_view key, Timeout timeout = {}) {
  void* data = nullptr;
  std::uint64_t length = 0;
  shmb_error error;
  detail::check(shmb_rank_wait(detail::CText(key).get(), timeout.nanoseconds(), &data, &length, &error), error);
  const detail::Bytes owned{data};
  return {static_cast<const char*>(data), length};
}
/// Sets the key if it has the expected value; a key without a value has the empty one. Returns the value that the key
/// has afterwards. Throws Error with limit or peer_gone.
inline std::string compare_exchange(std::string_view key, std::string_view expected, std::string_view desired) {
  void* data = nullptr;
  std::uint64_t length = 0;
  shmb_error error;
  detail::check(shmb_rank_compare_exchange(detail::CText(key).get(), expected.data(), expected.size(), desired.data(),
                                           desired.size(), &data, &length, &error),
                error);
  const detail::Bytes owned{data};
  return {static_cast<const char*>(data), length};
}
/// Removes the value and tells whether there was one. Throws Error with peer_gone.
inline bool erase(std::string_view key) {
  std::uint32_t existed = 0;
  shmb_error error;
  detail::check(shmb_rank_delete(detail::CText(key).get(), &existed, &error), error);
  return existed != 0;
}
/// Adds to the decimal number of the key, 0 if it has none, and returns the sum. Throws Error with invalid (the value
/// is no number, or the sum is too large) or peer_gone.
inline std::int64_t add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = 0;
  shmb_error error;
  detail::check(shmb_rank_add(detail::CText(key).get(), amount, &sum, &error), error);
  return sum;
}

}  // namespace ranks
}  // namespace shmbroker

#ifdef MSGPACK_VERSION_MAJOR  // if the program has included <msgpack.hpp>
#include "spawn_msgpack.hpp"
#endif

#endif
#endif
