// SPDX-License-Identifier: Apache-2.0
// HELLO: a connection becomes a session, with the group that it shows a token of, or of the session that it follows.
#include <algorithm>

#include "base/result.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/session_end.hpp"

namespace shmb::daemon {
namespace {

constexpr std::size_t kLibraryShown = 64;
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 62;  // no session counts on from there to the end

// A peer's name for itself is shown in tables on terminals.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, kLibraryShown));
  std::ranges::replace_if(out, [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

// A forked child, or a second connection, joins the group of its parent. The group is made now if the parent has none
// yet.
Result<void> follow(Ledger& ledger, Session& session, Session& source) {
  session.fork_source = source.id;
  if (source.lazy && source.uid == session.uid && source.pid == session.pid && session.pid != 0) {
    take_over(ledger, session, source);
    return {};
  }
  if (source.ended_group) {
    session.ended_group = source.ended_group;
    return {};
  }
  // A forked child of a supervisor is part of the job.
  if (!source.group && source.supervises) {
    join_group(ledger.groups, session, *source.supervises);
    return {};
  }
  SHMB_TRY_VOID(own_group(ledger.groups, source));
  join_group(ledger.groups, session, *source.group);
  return {};
}

Result<void> admit(Ledger& ledger, Session& session, const shmbw_hello& hello) {
  if (session.refusal) {  // the limit may have room by now
    Uid& uid = ledger.accounts.uids.at(session.uid);
    session.refusal_told = true;
    const bool root = session.uid == 0 && !ledger.host.private_mode();
    if (const auto full = session_shortage(ledger.accounts, session.uid, session.admin || root))
      return std::unexpected(refuse_descriptors(ledger.host, *full));
    auto charge = uid.account.charge(Resource::sessions, 1);
    if (!charge) return std::unexpected(refuse_limit(ledger.groups, session, charge.error()));
    session.charge = std::move(*charge);
    session.refusal.reset();
    std::erase(uid.refused, session.id);
  }
  if (hello.fork_session) {
    Session* source = ledger.sessions.find(hello.fork_session);
    const Secret shown = Secret::from(hello.fork_secret);
    if (!source || !source->greeted() || !source->fork_secret.same(shown))
      return error(Status::not_found,
                   "the session to follow is gone or the fork secret is not its own; say HELLO without it");
    return follow(ledger, session, *source);
  }
  const Secret token = Secret::from(hello.group_token);
  if (token.zero()) return {};
  Group* group = find_group(ledger.groups, token);
  if (!group)
    return error(Status::not_found,
                 "the token of SHMBROKER_GROUP admits to no group here: the group has ended, "
                 "or belongs to another broker");
  if (group->closed) return error(Status::group_ended, "the group of SHMBROKER_GROUP has ended");
  join_group(ledger.groups, session, *group);
  return {};
}

}  // namespace

void serve_hello(const Request& request) {
  auto& [ledger, session, packet] = request;
  auto hello = request.read<shmbw_hello>();
  if (!hello) return;
  changed(session);
  wire::TextReader texts(packet.rest);
  auto library = texts.take(hello->library_len);
  auto group = texts.take(hello->group_len);
  if (!library || !group || !texts.done()) return request.refuse_struct(Status::invalid);
  if (hello->version_min > hello->version_max || hello->version_min > SHMBW_PROTOCOL ||
      hello->version_max < SHMBW_PROTOCOL) {
    session.phase = Phase::refused;
    return request.fail(Status::version, "the client speaks protocol " + std::to_string(hello->version_min) + " to " +
                                             std::to_string(hello->version_max) + ", this broker (" +
                                             ledger.host.facts.version + ") " + std::to_string(SHMBW_PROTOCOL) +
                                             ": install matching versions");
  }
  const bool resumes = ledger.host.facts.resumable && (hello->features & SHMBW_FEATURE_RESUME) != 0;
  if (resumes && (packet.header.tag == 0 || packet.header.tag > kMostNumber))
    return request.fail(
        Status::invalid,
        "with the feature RESUME the tag of HELLO is its number: at least 1, at most " + std::to_string(kMostNumber));
  if (resumes) {
    ledger.host.books.store.expect<books::AnswerRecord>();
    if (!ledger.has_memory()) return request.fail(no_own_memory());
  }
  // Without a start time (a client without /proc) an uncertain pidfd is useless, and is never watched.
  if (session.has_pidfd && !session.link->confirm_start_time(hello->start_time)) session.has_pidfd = false;
  session.pidfd = session.link->descriptors_held().pidfd;
  auto secret = Secret::draw();
  if (!secret) return request.fail(system_failure(secret.error(), "drawing a fork secret").error());
  session.fork_secret = *secret;
  if (auto admitted = admit(ledger, session, *hello); !admitted) return request.fail(admitted.error());
  session.library = printable(*library);
  session.start_ticks = hello->start_time;
  session.takes_descriptors =
      (hello->features & SHMBW_FEATURE_PASS_RIGHTS) != 0 && !ledger.accounts.closes_too_many(session.uid);
  if (session.takes_descriptors) session.link->take_descriptors(false);
  session.numbers.on = resumes;
  session.phase = Phase::greeted;

  shmbw_hello_reply reply{};
  reply.version = SHMBW_PROTOCOL;
  reply.mode = ledger.host.private_mode() ? SHMBW_MODE_PRIVATE : SHMBW_MODE_SYSTEM;
  reply.broker_uid = ledger.host.facts.uid;
  reply.uid = session.uid;
  reply.max_message = SHMBW_MAX_MESSAGE;
  reply.features = ledger.host.facts.features | (resumes ? std::uint64_t{SHMBW_FEATURE_RESUME} : 0);
  reply.epoch = ledger.host.facts.epoch;
  reply.session = session.id;
  reply.group = session.group ? session.group->id : 0;
  session.fork_secret.to(reply.fork_secret);
  reply.max_batch = SHMBW_MAX_BATCH;
  reply.broker_len = static_cast<std::uint16_t>(ledger.host.facts.version.size());
  request.answer(reply, {ledger.host.facts.version});
}

}  // namespace shmb::daemon
