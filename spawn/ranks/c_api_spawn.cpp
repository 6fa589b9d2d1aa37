// SPDX-License-Identifier: Apache-2.0
// The C ABI of spawn, for programs of the parent and of the ranks. No internal type crosses it.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/sys_process.hpp"
#include "client/c_api/c_api.hpp"
#include "client/session/strategy.hpp"
#include "spawn/face/shmbroker_spawn.h"
#include "spawn/ranks/bytes.hpp"
#include "spawn/ranks/processes.hpp"
#include "spawn/ranks/rank.hpp"
#include "spawn/ranks/stack_text.hpp"

using namespace shmb;
using namespace shmb::spawn;
using namespace shmb::client::c_api;
using shmb::client::Deadline;

struct shmb_processes {
  std::unique_ptr<Processes> it;
  bool daemon = false;
  std::mutex mutex;
  std::vector<std::vector<shmb_cause>> causes;  // causes of each failure, as the C API gives them
};

namespace {

Result<Processes*> processes_of(shmb_processes* processes) {
  if (processes == nullptr) return shmb::error(Status::invalid, "no processes were given");
  return processes->it.get();
}

std::vector<std::string> words(const char* const* list) {
  std::vector<std::string> out;
  for (; list != nullptr && *list != nullptr; ++list) out.emplace_back(*list);
  return out;
}

// This program's file. If it was replaced meanwhile, the running one is /proc/PID/exe.
std::string own_program() {
  const std::string kept = "/proc/" + std::to_string(::getpid()) + "/exe";
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (size <= 0) return kept;
  path[size] = '\0';
  struct stat running{}, there{};
  if (::stat("/proc/self/exe", &running) != 0 || ::stat(path, &there) != 0 || running.st_ino != there.st_ino ||
      running.st_dev != there.st_dev)
    return kept;
  return path;
}

Result<std::vector<std::string>> own_arguments() {
  auto text = sys::read_file("/proc/self/cmdline", std::size_t{4} << 20);
  if (!text) return system_failure(text.error(), "reading this program's arguments");
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\0', at), text->size());
    out.push_back(text->substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// A time of grace as the plan has it, where 0 is none.
std::int64_t period(std::int64_t given, std::int64_t by_default) {
  if (given == 0) given = by_default;
  return given == SHMB_NO_WAIT ? 0 : given;
}

Result<Plan> plan_of(const shmb_spawn_options& options) {
  Plan plan;
  if ((options.flags & ~(SHMB_SPAWN_NO_GROUP | SHMB_SPAWN_DAEMON)) != 0)
    return shmb::error(Status::unknown_flags, "an unknown flag of spawn");
  if (options.method > SHMB_START_COMMAND) return shmb::error(Status::invalid, "there is no such start method");
  if (options.stdio > SHMB_STDIO_PREFIX) return shmb::error(Status::invalid, "there is no such way for output");
  if (options.master_port > 65535) return shmb::error(Status::invalid, "ports are 1 to 65535");
  plan.method = static_cast<Method>(options.method);
  plan.nprocs = options.nprocs;
  plan.shards = options.shards == 0 ? 1 : options.shards;
  plan.shard = options.shard;
  plan.channels = plan.rank_variables = true;
  plan.stdio = static_cast<Stdio>(options.stdio);
  plan.stdio_path = text_or_empty(options.stdio_path);
  plan.function = text_or_empty(options.function);
  if (options.arguments != nullptr)
    plan.arguments.assign(static_cast<const char*>(options.arguments), options.arguments_length);
  plan.program = text_or_empty(options.program);
  plan.command = words(options.command);
  const bool again = plan.method == Method::spawn || plan.method == Method::forkserver;
  if (again && plan.command.empty()) {
    SHMB_TRY(own, own_arguments());
    plan.command = std::move(own);
    if (plan.program.empty()) plan.program = own_program();
  }
  for (const std::string& one : words(options.environment)) {
    const std::size_t sign = one.find('=');
    if (sign == one.npos) return shmb::error(Status::invalid, "an environment variable without '=': " + one);
    plan.environment.emplace_back(one.substr(0, sign), one.substr(sign + 1));
  }
  const auto given = [&](const auto& one) { return one.first == shmb::client::kStrategyVariable; };
  if (auto strategy = shmb::client::strategy_for_children(); strategy && std::ranges::none_of(plan.environment, given))
    plan.environment.emplace_back(shmb::client::kStrategyVariable, *strategy);
  plan.directory = text_or_empty(options.directory);
  plan.group = (options.flags & SHMB_SPAWN_NO_GROUP) == 0;
  plan.group_name = text_or_empty(options.group);
  plan.group_limit = options.group_limit_bytes;
  plan.socket = text_or_empty(options.socket);
  if (options.master_addr != nullptr) plan.master_address = options.master_addr;
  plan.master_port = static_cast<std::uint16_t>(options.master_port);
  plan.voluntary = period(options.voluntary_ns, SHMB_RANK_VOLUNTARY);
  plan.grace = period(options.grace_ns, SHMB_RANK_GRACE);
  plan.start_timeout = options.start_timeout_ns == 0 ? kStartTimeout : options.start_timeout_ns;
  plan.kill_rest = std::min(plan.grace, kGrace);
  plan.entry = options.entry;
  plan.context = options.context;
  return plan;
}

char* allocated(std::string_view bytes) {
  auto* out = static_cast<char*>(std::malloc(bytes.size() + 1));
  if (out == nullptr) throw std::bad_alloc();
  std::memcpy(out, bytes.data(), bytes.size());
  out[bytes.size()] = '\0';
  return out;
}

// The ticket ends with the parent's session. So neither the rank's end nor the parent's leaves a region that no process
// can reach.
Result<client::Region::Ticket> lend_to_parent(client::Region& region, const RankFacts& facts, std::uint32_t rights,
                                              std::uint32_t uses, std::int64_t lifetime, Deadline deadline) {
  constexpr std::int64_t kLong = 7LL * 24 * 3600 * 1'000'000'000;
  const bool met = facts.parent_session != 0 && facts.parent_epoch == region.session().epoch();
  if (!met) return region.make_ticket(rights, uses, lifetime, deadline);
  SHMB_TRY_VOID(announce_lent(deadline));
  const auto made = [&](std::int64_t life) {
    return region.make_ticket(rights, uses, life, deadline, SHMBW_TICKET_CREATE_WITH_SESSION, facts.parent_session);
  };
  auto ticket = made(lifetime == 0 ? kLong : lifetime);
  if (!ticket && lifetime == 0 && ticket.error().shortage.slot == SHMBW_SLOT_LIFETIME)  // the administrator's limit
    return made(static_cast<std::int64_t>(ticket.error().shortage.limit));
  return ticket;
}

Result<void> give(Result<std::string> answer, void** data, std::uint64_t* length) {
  if (!answer) return std::unexpected(answer.error());
  if (data != nullptr) *data = allocated(*answer);
  if (length != nullptr) *length = answer->size();
  return {};
}

Result<Deadline> deadline_for_others(std::int64_t wait) {
  if (wait < 0) return shmb::error(Status::invalid, "waiting for other ranks always has a deadline above 0");
  return Deadline::after(wait, kRankDeadline);
}

std::string_view view(const void* data, std::uint64_t length) {
  return data == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(data), length);
}

Result<std::string> ask_all(Op op, const char* name, std::int32_t root, std::string_view value, std::int64_t wait) {
  SHMB_TRY(deadline, deadline_for_others(wait));
  return ask(op, Packer().text(text_or_empty(name)).number(root).text(value).take(), deadline);
}

Result<std::string> ask_store(Op op, const char* key, std::string_view value = {}) {
  return ask(op, Packer().text(text_or_empty(key)).text(value).take(), Deadline::after(0));
}

std::string failure_text(const shmb_failure& c) {
  Failure failure;
  failure.kind = static_cast<Failure::Kind>(c.kind);
  failure.rank = c.rank;
  failure.exit_code = c.exit_code;
  failure.signal = c.signal;
  failure.type = text_or_empty(c.type), failure.text = text_or_empty(c.text), failure.trace = text_or_empty(c.trace);
  return torch_message_of(failure);
}

const Verdict* verdict_of(shmb_processes* processes) {
  if (processes == nullptr) return nullptr;
  auto joined = processes->it->join(Deadline::now());
  return joined ? *joined : nullptr;
}

}  // namespace

extern "C" {

int shmb_spawn(const shmb_spawn_options* options, shmb_processes** processes, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(options));
    if (processes == nullptr) return shmb::error(Status::invalid, "no place for the processes was given");
    if (awaited_as_rank())
      return shmb::error(Status::invalid,
                         "this process is a rank that has not called shmb_rank_enter: the first line of "
                         "main must, or each rank would start all ranks again");
    if (known.timeout_ns < 0) return shmb::error(Status::invalid, "starting ranks always has a deadline");
    SHMB_TRY(plan, plan_of(known));
    SHMB_TRY(started, Processes::start(std::move(plan), Deadline::after(known.timeout_ns, SHMB_SPAWN_TIMEOUT)));
    auto made = std::make_unique<shmb_processes>();
    made->it = std::move(started);
    made->daemon = (known.flags & SHMB_SPAWN_DAEMON) != 0;
    *processes = made.release();
    return {};
  });
}

int shmb_processes_join(shmb_processes* processes, int64_t wait_ns, int64_t voluntary_ns, uint32_t* state,
                        shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(it, processes_of(processes));
    if (voluntary_ns < 0 && voluntary_ns != SHMB_NO_WAIT)
      return shmb::error(Status::invalid, "the voluntary time is above 0, 0 for what it was, or SHMB_NO_WAIT for none");
    constexpr std::int64_t kAsItWas = -1;
    SHMB_TRY(verdict, it->join(Deadline::after(wait_ns, SHMB_JOIN_WAIT), period(voluntary_ns, kAsItWas)));
    if (verdict == nullptr && interrupt::noted()) return std::unexpected(interrupted());
    if (state != nullptr)
      *state = verdict == nullptr          ? SHMB_PROCESSES_RUNNING
               : verdict->failures.empty() ? SHMB_PROCESSES_SUCCEEDED
                                           : SHMB_PROCESSES_FAILED;
    return {};
  });
}

int shmb_processes_end(shmb_processes* processes, uint32_t at_once, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(it, processes_of(processes));
    it->end(at_once != 0);
    return {};
  });
}

void shmb_processes_free(shmb_processes* processes) noexcept {
  if (processes == nullptr) return;
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    if (!processes->daemon) (void)processes->it->join(Deadline::after(client::kForever));
    delete processes;
    return {};
  });
}

int shmb_processes_descriptor(shmb_processes* processes, int* descriptor, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(it, processes_of(processes));
    if (descriptor == nullptr) return shmb::error(Status::invalid, "no place for the descriptor was given");
    const int found = it->descriptor();
    if (found < 0)
      return shmb::error(Status::unsupported, "this kernel has no descriptor for the end of a process (Linux 5.3 has)");
    *descriptor = found;
    return {};
  });
}

int shmb_processes_pids(shmb_processes* processes, int32_t* pids, size_t capacity, size_t* count,
                        shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(it, processes_of(processes));
    const std::vector<pid_t>& all = it->pids();
    for (std::size_t i = 0; i < std::min(capacity, all.size()) && pids != nullptr; ++i) pids[i] = all[i];
    if (count != nullptr) *count = all.size();
    return {};
  });
}

int shmb_processes_result(shmb_processes* processes, int32_t local_rank, const void** data, uint64_t* length,
                          shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    const Verdict* verdict = verdict_of(processes);
    if (verdict == nullptr) return shmb::error(Status::not_found, "the ranks have not ended yet");
    if (verdict->failures.empty() && verdict->results.empty())
      return shmb::error(
          Status::limit,
          "the results are lost: no descriptor was free in this process to take them when the ranks ended; raise its "
          "limit (RLIMIT_NOFILE), or close files, and run them again");
    if (verdict->results.empty())
      return shmb::error(Status::invalid, "there is no local rank " + std::to_string(local_rank) +
                                              " with a result: these ranks have none; join says what became of them");
    if (local_rank < 0 || static_cast<std::size_t>(local_rank) >= verdict->results.size())
      return shmb::error(Status::invalid, "there is no local rank " + std::to_string(local_rank) +
                                              ": those of this call are 0 to " +
                                              std::to_string(verdict->results.size() - 1));
    const std::string& result = verdict->results[static_cast<std::size_t>(local_rank)];
    if (data != nullptr) *data = result.data();
    if (length != nullptr) *length = result.size();
    return {};
  });
}

int shmb_processes_session(shmb_processes* processes, shmb_session** session, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(it, processes_of(processes));
    if (session == nullptr) return shmb::error(Status::invalid, "no place for the session was given");
    SHMB_TRY(found, it->session());
    if (!found)
      return shmb::error(Status::not_found,
                         "these ranks were started without a group and without the socket of a broker: which one they "
                         "have used is not known here; connect to it");
    *session = new shmb_session{std::move(found)};
    return {};
  });
}

size_t shmb_processes_failures(shmb_processes* processes) noexcept {
  std::size_t count = 0;
  (void)guarded(nullptr, [&]() -> Result<void> {
    const Verdict* verdict = verdict_of(processes);
    if (verdict != nullptr) count = verdict->failures.size();
    return {};
  });
  return count;
}

int shmb_processes_failure(shmb_processes* processes, size_t number, shmb_failure* failure,
                           shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    const Verdict* verdict = verdict_of(processes);
    if (verdict == nullptr || number >= verdict->failures.size())
      return shmb::error(Status::not_found, "there is no failure of that number");
    const Failure& found = verdict->failures[number];
    shmb_failure out{};
    out.kind = found.kind;
    out.rank = found.rank;
    out.pid = found.pid;
    out.exit_code = found.exit_code;
    out.signal = found.signal;
    out.core = found.core;
    out.ended_by_us = found.ended_by_us;
    out.cut = found.cut;
    out.user_ns = found.user_ns;
    out.system_ns = found.system_ns;
    out.max_rss_bytes = found.max_rss;
    out.time_ns = found.time;
    out.message = found.message.c_str();
    out.type = found.type.c_str();
    out.text = found.text.c_str();
    out.trace = found.trace.c_str();
    if (found.signal != 0) copy_text(out.signal_name, signal_name(found.signal));
    const std::lock_guard lock(processes->mutex);
    processes->causes.resize(verdict->failures.size());
    std::vector<shmb_cause>& causes = processes->causes[number];
    if (causes.size() != found.causes.size()) {
      causes.clear();
      for (const Cause& one : found.causes) causes.push_back({one.type.c_str(), one.text.c_str()});
    }
    out.causes = causes.data();
    out.cause_count = causes.size();
    return write_struct(out, failure);
  });
}

int shmb_failure_message(const shmb_failure* failure, char** message, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(failure));
    if (message == nullptr) return shmb::error(Status::invalid, "no place for the message was given");
    *message = allocated(failure_text(known));
    return {};
  });
}

int shmb_rank_enter(void (*preload)(void), shmb_rank_info* info, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(facts, enter_rank(preload));
    if (info == nullptr) return {};
    const RankFacts& known = *facts;
    shmb_rank_info out{};
    out.rank = known.rank;
    out.local_rank = known.local_rank;
    out.world_size = known.world_size;
    out.local_world_size = known.local_world_size;
    out.shard = known.shard;
    out.function = known.function.c_str();
    out.arguments = known.arguments.data();
    out.arguments_length = known.arguments.size();
    return write_struct(out, info);
  });
}

int shmb_rank_finish(const void* result, uint64_t length, shmb_error* error) noexcept {
  return guarded(error, [&] { return finish_rank(view(result, length)); });
}

int shmb_rank_lend(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns, int64_t timeout_ns,
                   uint8_t ticket[16], int64_t* expires_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(facts, enter_rank(nullptr));
    SHMB_TRY(known, region_of(region));
    if (ticket == nullptr) return shmb::error(Status::invalid, "no place for the ticket was given");
    SHMB_TRY(made, lend_to_parent(*known, *facts, rights, uses, lifetime_ns, Deadline::after(timeout_ns)));
    std::ranges::copy(made.token.bytes, ticket);
    if (expires_ns != nullptr) *expires_ns = made.expires;
    return {};
  });
}

int shmb_rank_raise(const char* type, const char* text, const char* trace, shmb_error* error) noexcept {
  shmb_raised raised{};
  raised.size = sizeof raised;
  raised.type = type, raised.text = text, raised.trace = trace;
  return shmb_rank_raise_from(&raised, error);
}

int shmb_rank_raise_from(const shmb_raised* raised, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(raised));
    if (known.causes == nullptr && known.cause_count != 0)
      return shmb::error(Status::invalid, "causes were counted, and none were given");
    std::vector<Cause> causes;
    for (std::size_t i = 0; i < std::min<std::size_t>(known.cause_count, SHMB_MOST_CAUSES + 1); ++i)
      causes.push_back({text_or_empty(known.causes[i].type), text_or_empty(known.causes[i].text)});
    const auto view_of = [](const char* text) { return text == nullptr ? std::string_view() : std::string_view(text); };
    return raise_in_rank(view_of(known.type), view_of(known.text), view_of(known.trace), causes);
  });
}

int shmb_rank_throwing(const char* type, shmb_error* error) noexcept {
  return guarded(error, [&] { return throw_in_rank(type == nullptr ? "" : type); });
}

int shmb_type_text(const char* mangled, char** text, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (mangled == nullptr || text == nullptr) return shmb::error(Status::invalid, "no name, or no place for the text");
    *text = allocated(type_text(mangled));
    return {};
  });
}

int shmb_stack_text(void* const* frames, size_t count, const void* bottom, char** text, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if ((frames == nullptr && count != 0) || text == nullptr)
      return shmb::error(Status::invalid, "no frames, or no place for the text");
    *text = allocated(stack_text(frames, count, bottom));
    return {};
  });
}

void shmb_bytes_free(void* bytes) noexcept { std::free(bytes); }

int shmb_rank_barrier(const char* name, int64_t wait_ns, shmb_error* error) noexcept {
  return guarded(error, [&] { return give(ask_all(Op::barrier, name, -1, {}, wait_ns), nullptr, nullptr); });
}

int shmb_rank_broadcast(const char* name, int32_t root, const void* value, uint64_t length, int64_t wait_ns,
                        void** data, uint64_t* data_length, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    auto facts = enter_rank(nullptr);
    const bool mine = facts && (*facts)->local_rank == root;
    return give(ask_all(Op::broadcast, name, root, mine ? view(value, length) : "", wait_ns), data, data_length);
  });
}

int shmb_rank_all_gather(const char* name, const void* value, uint64_t length, int64_t wait_ns, void** data,
                         uint64_t** offsets, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (data == nullptr || offsets == nullptr) return shmb::error(Status::invalid, "no place for the values was given");
    SHMB_TRY(answer, ask_all(Op::all_gather, name, -1, view(value, length), wait_ns));
    Unpacker in(answer);
    const std::vector<std::string> values = in.texts();
    std::string all;
    std::vector<std::uint64_t> places{0};
    for (const std::string& one : values) places.push_back((all += one).size());
    auto* out = static_cast<std::uint64_t*>(std::malloc(places.size() * sizeof(std::uint64_t)));
    if (out == nullptr) throw std::bad_alloc();
    std::ranges::copy(places, out);
    *offsets = out;
    *data = allocated(all);
    return {};
  });
}

int shmb_rank_set(const char* key, const void* value, uint64_t length, shmb_error* error) noexcept {
  return guarded(error, [&] { return give(ask_store(Op::set, key, view(value, length)), nullptr, nullptr); });
}

int shmb_rank_get(const char* key, void** data, uint64_t* length, shmb_error* error) noexcept {
  return guarded(error, [&] { return give(ask_store(Op::get, key), data, length); });
}

int shmb_rank_wait(const char* key, int64_t wait_ns, void** data, uint64_t* length, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(deadline, deadline_for_others(wait_ns));
    return give(ask(Op::wait, Packer().text(text_or_empty(key)).take(), deadline), data, length);
  });
}

int shmb_rank_compare_exchange(const char* key, const void* expected, uint64_t expected_length, const void* desired,
                               uint64_t desired_length, void** data, uint64_t* length, shmb_error* error) noexcept {
  return guarded(error, [&] {
    const std::string payload = Packer()
                                    .text(text_or_empty(key))
                                    .text(view(expected, expected_length))
                                    .text(view(desired, desired_length))
                                    .take();
    return give(ask(Op::compare_exchange, payload, Deadline::after(0)), data, length);
  });
}

int shmb_rank_delete(const char* key, uint32_t* existed, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(answer, ask_store(Op::erase, key));
    if (existed != nullptr) *existed = answer == "1";
    return {};
  });
}

int shmb_rank_add(const char* key, int64_t amount, int64_t* sum, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(answer, ask(Op::add, Packer().text(text_or_empty(key)).number(amount).take(), Deadline::after(0)));
    if (sum != nullptr) *sum = std::strtoll(answer.c_str(), nullptr, 10);
    return {};
  });
}

}  // extern "C"
