// SPDX-License-Identifier: Apache-2.0
// `shmbroker status`: which broker answers, how it was found, what it runs on and which features it lacks (law 12).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "daemon/books/reader.hpp"
#include "spawn/ranks/tree.hpp"
#include "tools/exit_code.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

// The process that gets the broker's exit status: PID 1, or a subreaper among the ancestors of its starter.
std::string parent_text(std::uint32_t pid) {
  auto broker = spawn::process(static_cast<pid_t>(pid));
  if (!broker) return "unknown: " + errno_text(broker.error().value);
  auto parent = spawn::process(broker->parent);
  const std::string name = parent ? " (" + shmb::quoted(parent->name) + ")" : "";
  if (parent && parent->name == "shmb-keeper")
    return "pid " + std::to_string(broker->parent) + name + ", which starts the next broker if this one dies";
  return "pid " + std::to_string(broker->parent) + name +
         (broker->parent > 1 ? ", which gets the broker's exit status: it started the broker, or is a subreaper" : "");
}

// The broker counts what it holds. These objects it lists, and the tool counts those that the caller may see.
struct Counts {
  std::uint64_t pools = 0, queues = 0, participants = 0, worlds = 0, workers = 0, references = 0;
};

Result<Counts> count_pools(const Viewer& viewer) {
  SHMB_TRY(pools, client::list_pools(viewer.session(), {}, viewer.deadline()));
  SHMB_TRY(queues, client::list_queues(viewer.session(), {}, viewer.deadline()));
  SHMB_TRY(participants, client::list_participants(viewer.session(), {}, viewer.deadline()));
  SHMB_TRY(worlds, client::list_worlds(viewer.session(), {}, viewer.deadline()));
  Counts counts{pools.rows.size(), queues.rows.size(), participants.rows.size(), worlds.rows.size(), 0, 0};
  for (const client::WorldRow& row : worlds.rows) {
    counts.workers += row.record.present;
    counts.references += row.record.references;
  }
  return counts;
}

// Use and limit of the caller's tickets: the one table whose rows outlive the sessions that made them.
Result<shmbw_uid_record> own_row(const Viewer& viewer) {
  Selection own;
  own.owner_uid = viewer.facts().uid;
  SHMB_TRY(rows, client::list_uids(viewer.session(), own, viewer.deadline()));
  return rows.rows.empty() ? shmbw_uid_record{} : rows.rows.front().record;
}

std::string limit_text(std::uint64_t limit) { return limit == UINT64_MAX ? "any number" : number(limit); }
Json limit_json(std::uint64_t limit) { return limit == UINT64_MAX ? Json(nullptr) : Json(limit); }

std::string tickets_text(const shmbw_uid_record& own) {
  std::string text = number(own.tickets) + " of " + limit_text(own.tickets_limit) + " that " + user_text(own.uid) +
                     " may have, " + limit_text(own.session_tickets) + " for one session";
  if (own.tickets_left != 0)
    text += "; " + number(own.tickets_left) + " left by sessions that have ended (release --tickets)";
  return text;
}

std::string status_text(const Common& common, const Viewer& viewer, const BrokerStatus& status, const Counts& counts,
                        const shmbw_uid_record& own) {
  const shmbw_status_reply& facts = status.record;
  std::vector<std::pair<std::string, std::string>> lines{
      {"broker", mode_text(facts.mode) + ", version " + status.version + ", pid " + number(facts.pid) + ", user " +
                     user_text(facts.broker_uid) + ", up " + age_text(sys::now_boottime() - facts.uptime)},
      {"child of", parent_text(facts.pid)},
      {"socket", viewer.facts().socket},
      {"found", viewer.facts().how},
      {"engine", status.engine.empty() ? engine_text(facts.engine) : status.engine},  // "io_uring: why"
      {"kernel", status.kernel},
      {"memory", size_text(common, facts.bytes) + " of " + size_text(common, facts.bytes_limit) + " in use, " +
                     size_text(common, facts.bytes_cached) + " of it cached for reuse"},
      {"tables", count_text(facts.groups, "group") + ", " + count_text(facts.regions, "region") + ", " +
                     count_text(facts.leases, "lease") + ", " + count_text(facts.tickets, "ticket") + ", " +
                     count_text(facts.sessions, "session") + ", " + count_text(facts.watches, "watch", "es")},
      {"tickets", tickets_text(own)},
      {"pools", count_text(counts.pools, "pool") + ", " + count_text(counts.queues, "queue") + ", " +
                    count_text(counts.participants, "participant") + " that are yours to see"},
      {"worlds", count_text(counts.worlds, "world") + ", " + count_text(counts.workers, "worker") + ", " +
                     count_text(counts.references, "reference") + " that are yours to see"},
      {"descriptors", number(facts.descriptors) + " of " + number(facts.descriptors_limit) + " in use, " +
                          number(facts.descriptors_reserved) + " reserved, " + number(facts.in_flight) + " in flight"},
      {"served", count_text(facts.requests, "request") + ", " + number(facts.refusals) + " refused; " +
                     count_text(facts.reclaims, "reclaim") + " freed " + size_text(common, facts.bytes_reclaimed)}};
  const char* label = "without";
  for (const std::string& loss : loss_lines(status)) lines.emplace_back(std::exchange(label, ""), loss);
  return label_lines(lines);
}

// The broker empties the copy when somebody asks for the next one. A mapping of it would then be a signal.
Result<std::vector<std::byte>> bytes_of(const client::BrokerBooks& books) {
  auto facts = sys::file_facts(books.memory.get());
  if (!facts) return system_failure(facts.error(), "fstat of the copy of the broker's books");
  std::vector<std::byte> bytes(std::min(books.record.bytes, facts->size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(books.memory.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(Errno{errno}, "reading the copy of the broker's books");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  if (done == books.record.bytes) return bytes;
  return error(Status::busy, "the copy of the broker's books has " + number(done) + " of " +
                                 number(books.record.bytes) +
                                 " bytes: somebody has asked for the next one, so ask again");
}

// The books as the broker would leave them now. Exit status 6: something in them is damaged or contradicts itself.
int run_state(const Common& common) {
  auto viewer = Viewer::connect_for(common, true);
  if (!viewer) return fail(viewer.error());
  auto books = client::broker_books(viewer->session(), viewer->deadline());
  if (!books) return fail(books.error());
  auto bytes = bytes_of(*books);
  if (!bytes) return fail(bytes.error());
  auto reader = daemon::books::Reader::open(*bytes);
  if (!reader) return fail(reader.error());
  const std::vector<std::string> problems = reader->problems();
  std::string text = reader->text();
  for (const std::string& problem : problems) text += "problem: " + problem + "\n";
  if (!print(text)) return kExitError;
  return problems.empty() ? kExitOk : kExitFindings;
}

int run_status(const Common& common) {
  auto viewer = Viewer::connect(common);
  if (!viewer) return fail(viewer.error());
  auto status = client::broker_status(viewer->session(), viewer->deadline());
  if (!status) return fail(status.error());
  auto counts = count_pools(*viewer);
  if (!counts) return fail(counts.error());
  auto own = own_row(*viewer);
  if (!own) return fail(own.error());
  std::string text;
  if (common.json) {
    Json json = document("status");
    json["broker"] = broker_json(*viewer, *status);
    json["visible"] = {{"pools", counts->pools},   {"queues", counts->queues},   {"participants", counts->participants},
                       {"worlds", counts->worlds}, {"workers", counts->workers}, {"references", counts->references}};
    json["own_tickets"] = {{"uid", own->uid},
                           {"used", own->tickets},
                           {"left", own->tickets_left},
                           {"limit", limit_json(own->tickets_limit)},
                           {"session_limit", limit_json(own->session_tickets)}};
    text = dump(json);
  } else {
    text = status_text(common, *viewer, *status, *counts, *own);
  }
  return print(text) ? kExitOk : kExitError;
}

}  // namespace

Command add_status(CLI::App& app) {
  struct StatusOptions {
    Common common;
    bool state = false;
  };
  auto options = std::make_shared<StatusOptions>();
  CLI::App* verb = app.add_subcommand("status", "Show which broker answers, and what it found on this host");
  verb->add_flag("--state", options->state, "Instead: every record of the broker's books, without secrets");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return options->state ? run_state(options->common) : run_status(options->common); }};
}

}  // namespace shmb::tools
