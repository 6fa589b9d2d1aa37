// SPDX-License-Identifier: Apache-2.0
// The C ABI's sessions, groups, tokens and events. Regions are in c_api_regions.cpp.
#include "client/c_api/c_api.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "client/session/connect.hpp"
#include "client/session/strategy.hpp"
#include "client/session/user_group.hpp"
#include "client/session/version.hpp"
#include "client/session/words.hpp"
#include "proto/names.hpp"

namespace shmb::client::c_api {

std::atomic<EndTold> on_end_told = nullptr;

namespace {

void put_sentence(std::string_view sentence, shmb_error& out) {
  std::size_t length = std::min(sentence.size(), sizeof out.sentence - 1);
  // Not in the middle of a UTF-8 character.
  while (length < sentence.size() && length > 0 && (sentence[length] & 0xC0) == 0x80) --length;
  std::memcpy(out.sentence, sentence.data(), length);
  out.sentence[length] = '\0';
}

// The status of a call that had no time left, at any of its steps.
bool ran_out_of_time(Status status) {
  switch (status) {
    case Status::deadline:
    case Status::full:
    case Status::empty:
    case Status::busy:
    case Status::not_ready:
    case Status::no_broker:
    case Status::no_descriptors:
      return true;
    default:
      return false;
  }
}

bool tells_of_an_end(Status status) {
  return status == Status::peer_gone || status == Status::worker_gone || status == Status::owner_gone ||
         status == Status::poisoned || status == Status::producer_dead;
}

}  // namespace

int report(const Error& error, shmb_error* out) {
  if (tells_of_an_end(error.status)) [[unlikely]]
    if (const EndTold tell = on_end_told) tell();
  if (out != nullptr) {
    out->status = static_cast<std::int32_t>(error.status);
    out->system_errno = error.system_errno;
    out->slot = error.shortage.slot;
    out->scope = error.shortage.scope;
    out->scope_id = error.shortage.scope_id;
    out->limit = error.shortage.limit;
    out->used = error.shortage.used;
    out->asked = error.shortage.asked;
    put_sentence(error.sentence, *out);
  }
  return static_cast<int>(error.status);
}

Error interrupted() { return {Status::interrupted, 0, {}, "a signal ended the call while it waited: make it again"}; }

int report_end(const Error& error, shmb_error* out) {
  return interrupt::noted() && ran_out_of_time(error.status) ? report(interrupted(), out) : report(error, out);
}

Result<std::shared_ptr<Session>> session_of(shmb_session* session) {
  if (session == nullptr) return error(Status::invalid, "no session was given");
  return session->it;
}

Result<Region*> region_of(shmb_region* region) {
  if (region == nullptr) return error(Status::invalid, "no region was given");
  return region->it.get();
}

shmbw_region_ref to_ref(const shmb_region_id& id) { return {id.id, id.generation, 0}; }
shmb_region_id to_id(shmbw_region_ref ref, std::uint64_t epoch) { return {epoch, ref.id, ref.generation, 0}; }

Token to_token(const std::uint8_t* bytes) {
  Token token;
  std::copy_n(bytes, token.bytes.size(), token.bytes.begin());
  return token;
}

namespace {

shmb_event to_c(const Event& event, std::uint64_t epoch) {
  shmb_event out{};
  out.kind = static_cast<std::uint32_t>(event.kind);
  out.how = event.how;
  out.sequence = event.sequence;
  out.watch = event.watch;
  if (event.region.id != 0) out.region = to_id(event.region, epoch);
  out.group = event.group;
  out.bytes = event.bytes;
  out.lost = event.lost;
  out.uid = event.uid;
  out.pid = event.pid;
  out.regions = event.regions;
  out.code = event.code;
  copy_text(out.text, event.text);
  return out;
}

}  // namespace
}  // namespace shmb::client::c_api

using namespace shmb;
using namespace shmb::client;
using namespace shmb::client::c_api;

extern "C" {

const char* shmb_version(void) noexcept { return SHMB_VERSION_TEXT; }

const char* shmb_status_name(int status) noexcept {
  switch (status) {
#define X(name, value, text) \
  case value:                \
    return #name;
    SHMB_STATUS_TABLE(X)
#undef X
    default:
      return "unknown status";
  }
}

void shmb_error_words(shmb_error* error, uint32_t words) noexcept {
  if (error == nullptr || words == SHMB_WORDS_C || words > SHMB_WORDS_PYTHON) return;
  const std::string_view sentence(error->sentence, ::strnlen(error->sentence, sizeof error->sentence));
  if (!names_something(sentence)) return;  // nearly all
  try {
    put_sentence(in_words_of(static_cast<Face>(words), sentence), *error);
  } catch (const std::bad_alloc&) {  // it stays in the words of C
  }
}

const char* shmb_status_text(int status) noexcept {
  switch (status) {
#define X(name, value, text) \
  case value:                \
    return text;
    SHMB_STATUS_TABLE(X)
#undef X
    default:
      return "a status that this library does not know";
  }
}

int shmb_thread_interruptible(int on) noexcept { return interrupt::set_enabled(on != 0) ? 1 : 0; }

int shmb_connect(const shmb_connect_options* options, shmb_session** session, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(options));
    constexpr std::uint32_t flags = SHMB_CONNECT_LOCAL_OK | SHMB_CONNECT_NO_START | SHMB_CONNECT_ADMIN |
                                    SHMB_CONNECT_LOCAL_ONLY | SHMB_CONNECT_NO_GROUP;
    if ((known.flags & ~flags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of connect");
    if (known.timeout_ns == SHMB_FOREVER) return shmb::error(Status::invalid, "connect always has a deadline");
    if (session == nullptr) return shmb::error(Status::invalid, "no place for the session was given");
    ConnectOptions wanted;
    wanted.socket = text_or_empty(known.socket);
    wanted.group = text_or_empty(known.group);
    wanted.program = text_or_empty(known.program);
    wanted.local_ok = (known.flags & SHMB_CONNECT_LOCAL_OK) != 0;
    wanted.no_start = (known.flags & SHMB_CONNECT_NO_START) != 0;
    wanted.admin = (known.flags & SHMB_CONNECT_ADMIN) != 0;
    wanted.local_only = (known.flags & SHMB_CONNECT_LOCAL_ONLY) != 0;
    wanted.no_group = (known.flags & SHMB_CONNECT_NO_GROUP) != 0;
    wanted.timeout = known.timeout_ns;
    SHMB_TRY(opened, client::connect(wanted));
    *session = new shmb_session{std::move(opened), true};
    return {};
  });
}

void shmb_disconnect(shmb_session* session) noexcept {
  auto* const hook = at_disconnect.load(std::memory_order_acquire);
  if (hook != nullptr && session != nullptr && session->opened) hook(*session->it);
  delete session;
}

int shmb_session_get_info(shmb_session* session, shmb_session_info* info, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    const SessionFacts facts = known->facts();
    shmb_session_info out{};
    out.mode = facts.mode;
    out.started_by_us = facts.started_by_us ? 1 : 0;
    out.uid = facts.uid;
    out.broker_uid = facts.broker_uid;
    out.lost = known->lost() ? 1 : 0;
    out.protocol = facts.protocol;
    out.epoch = facts.epoch;
    out.session = facts.session;
    out.group = facts.group;
    out.features = facts.features;
    copy_text(out.socket, facts.socket);
    copy_text(out.broker, facts.broker);
    copy_text(out.how, facts.how);
    return write_struct(out, info);
  });
}

const char* const* shmb_sharing_strategies(void) noexcept { return strategy_names().data(); }

int shmb_sharing_strategy(const char** name, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (name == nullptr) return shmb::error(Status::invalid, "no place for the name was given");
    SHMB_TRY(now, strategy());
    *name = name_of(now);
    return {};
  });
}

int shmb_set_sharing_strategy(const char* name, shmb_error* error) noexcept {
  return guarded(error, [&] { return set_strategy(name == nullptr ? "" : name); });
}

int shmb_ping(shmb_session* session, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    return known->ping(Deadline::after(timeout_ns));
  });
}

void shmb_token_format(const uint8_t token[16], char text[SHMB_TOKEN_TEXT]) noexcept {
  static constexpr char digits[] = "0123456789abcdef";
  for (std::size_t i = 0; i < 16; ++i) {
    text[2 * i] = digits[token[i] >> 4];
    text[2 * i + 1] = digits[token[i] & 15];
  }
  text[32] = '\0';
}

int shmb_token_parse(const char* text, uint8_t token[16]) noexcept {
  return guarded(nullptr, [&]() -> Result<void> {
    std::uint8_t parsed[16];
    if (text == nullptr || !names::parse_token(text, parsed))
      return shmb::error(Status::invalid, "a token is 32 lower-case hex digits");
    std::memcpy(token, parsed, sizeof parsed);
    return {};
  });
}

int shmb_group_create(shmb_session* session, const shmb_group_options* options, shmb_group* group,
                      shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    if (group == nullptr) return shmb::error(Status::invalid, "no place for the group was given");
    GroupSpec spec;
    spec.name = text_or_empty(wanted.name);
    spec.limit_bytes = wanted.limit_bytes;
    spec.limit_regions = wanted.limit_regions;
    spec.flags = wanted.flags;
    spec.keep = wanted.keep_ns;
    SHMB_TRY(made, known->create_group(spec, Deadline::after(wanted.timeout_ns)));
    group->id = made.id;
    std::ranges::copy(made.token.bytes, group->token);
    return {};
  });
}

int shmb_group_join(shmb_session* session, const char* group, uint32_t flags, int64_t timeout_ns, uint64_t* id,
                    shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(joined, known->join_group(text_or_empty(group), flags, Deadline::after(timeout_ns)));
    if (id != nullptr) *id = joined;
    return {};
  });
}

void shmb_user_group(char name[SHMB_MAX_NAME + 1]) noexcept {
  (void)std::snprintf(name, SHMB_MAX_NAME + 1, "shell-%u", unsigned{::geteuid()});
}

int shmb_group_join_user(shmb_session* session, int64_t timeout_ns, uint64_t* id, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(joined, join_user_group(*known, Deadline::after(timeout_ns)));
    if (id != nullptr) *id = joined;
    return {};
  });
}

int shmb_group_join_token(shmb_session* session, const uint8_t token[16], uint32_t flags, int64_t timeout_ns,
                          uint64_t* id, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (token == nullptr) return shmb::error(Status::invalid, "no token was given");
    SHMB_TRY(joined, known->join_group(to_token(token), flags, Deadline::after(timeout_ns)));
    if (id != nullptr) *id = joined;
    return {};
  });
}

int shmb_group_leave(shmb_session* session, uint64_t group, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY_VOID(known->leave_group(group, Deadline::after(timeout_ns)));
    return {};
  });
}

int shmb_group_end(shmb_session* session, uint64_t group, const char* name, uint32_t flags, int64_t timeout_ns,
                   shmb_group_ending* ending, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(ended, known->end_group(group, text_or_empty(name), flags, Deadline::after(timeout_ns)));
    if (ending != nullptr) *ending = {ended.members, ended.regions, ended.bytes_freed};
    return {};
  });
}

int shmb_group_wait(shmb_session* session, uint64_t group, int64_t wait_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    return known->wait_group(group, Deadline::after(0), Deadline::after(wait_ns, SHMB_GROUP_WAIT));
  });
}

int shmb_group_variable(const char* name, const uint8_t token[16], char text[SHMB_VARIABLE_TEXT],
                        shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (token == nullptr || text == nullptr) return shmb::error(Status::invalid, "no token or no place was given");
    const std::string wanted = text_or_empty(name);
    SHMB_TRY_VOID(names::check(wanted, "group name"));
    std::uint8_t copy[16];
    std::memcpy(copy, token, sizeof copy);
    const std::string variable = names::format_group_variable(wanted, copy);
    std::memcpy(text, variable.c_str(), variable.size() + 1);
    return {};
  });
}

int shmb_watch(shmb_session* session, const shmb_watch_options* options, uint64_t* watch, uint32_t* state,
               shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    if (watch == nullptr) return shmb::error(Status::invalid, "no place for the subscription was given");
    WatchSpec spec;
    spec.kind = static_cast<shmbw_watch_kind>(wanted.kind);
    if (wanted.kind < SHMB_WATCH_REGION || wanted.kind > SHMB_WATCH_RECLAIM)
      return shmb::error(Status::invalid, "an unknown kind of watch");
    const std::uint64_t epoch = known->facts().epoch;
    if (wanted.region.epoch != 0 && wanted.region.epoch != epoch)
      return shmb::error(Status::stale, "the region's identity is from another life of the broker");
    spec.events = wanted.events;
    spec.region = to_ref(wanted.region);
    spec.group = wanted.group;
    spec.address = text_or_empty(wanted.address);
    SHMB_TRY(made, known->watch(spec, Deadline::after(wanted.timeout_ns)));
    *watch = made.id;
    if (state != nullptr) *state = made.state;
    return {};
  });
}

int shmb_unwatch(shmb_session* session, uint64_t watch, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    return known->unwatch(watch, Deadline::after(timeout_ns));
  });
}

int shmb_event_descriptor(shmb_session* session, int* fd, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (fd == nullptr) return shmb::error(Status::invalid, "no place for the descriptor was given");
    SHMB_TRY(made, known->event_descriptor());
    *fd = made;
    return {};
  });
}

int shmb_next_event(shmb_session* session, int64_t wait_ns, shmb_event* event, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (event == nullptr) return shmb::error(Status::invalid, "no struct to fill was given");
    if (event->size < sizeof(std::size_t)) return wrong_size("the struct to fill", event->size);
    const std::uint64_t epoch =
        known->facts().epoch;  // this needs memory, and an event that was taken must not be lost
    SHMB_TRY(next, known->next_event(Deadline::after(wait_ns)));
    return write_struct(to_c(next, epoch), event);
  });
}

}  // extern "C"
