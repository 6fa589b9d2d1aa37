// SPDX-License-Identifier: Apache-2.0
// `shmbroker watch`: events as lines, as they come: reclaims of the caller's processes, the end of a group, and what
// becomes of a region's name. Nothing is lost between two lines without a line that says so.
//
// A name is followed for as long as the verb runs. Its watch tells of each region that gets it, and such a region gets
// a watch of its own, which ends with the region.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

using client::Event;
using client::WatchSpec;

struct WatchOptions {
  Common common;
  std::vector<std::string> addresses;
  std::string group;
  std::uint64_t most = 0;  // 0: for ever
  bool all_groups = false, lines_of_json = false;
};

class Follower {
 public:
  Follower(const WatchOptions& options, const Viewer& viewer) : options_(options), viewer_(viewer) {}
  Result<void> begin();
  int follow();

 private:
  Result<void> watch_group();
  Result<void> watch_name(const std::string& text);
  Result<void> watch_region(const std::string& address, const shmbw_region_ref& region);
  Result<void> take(const Event& event);
  Result<void> say(const std::string& text, Json json);
  Result<void> say_of_region(const char* what, const std::string& address, const shmbw_region_ref& region);

  const WatchOptions& options_;
  const Viewer& viewer_;
  std::map<std::uint64_t, std::string> names_, regions_;  // the address of each watch
  std::uint64_t group_watch_ = 0, said_ = 0;
  bool over_ = false;
};

Result<void> Follower::say(const std::string& text, Json json) {
  if (over_) return {};
  const std::int64_t now = sys::now_boottime();
  std::string line = printable(local_time_text(now) + " " + text) + "\n";
  if (options_.lines_of_json) {
    Json whole = document("watch");
    whole["time"] = time_json(now);
    whole.update(json);
    line = whole.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  }
  if (!print(line)) return error(Status::closed, "nobody reads the events any more");
  over_ = ++said_ == options_.most;
  return {};
}

Result<void> Follower::say_of_region(const char* what, const std::string& address, const shmbw_region_ref& region) {
  return say(std::string(what) + ": " + address + " " + id_text(region),
             {{"event", what}, {"address", address}, {"region", id_text(region)}});
}

Result<void> Follower::watch_group() {
  SHMB_TRY(address, names::parse_group(options_.group));
  Selection selection;
  selection.all_groups = options_.all_groups;
  selection.owner_uid = address.owner_uid;
  if (const auto id = names::group_id(address.group)) selection.group = *id;
  else selection.group_name = address.group;
  SHMB_TRY(groups, client::list_groups(viewer_.session(), selection, viewer_.deadline()));
  if (groups.rows.empty()) {
    const wire::Sought sought{.what = "group", .name = options_.group};
    return std::unexpected(client::asked_of(viewer_.facts().socket, wire::not_found(sought)));
  }
  const std::uint64_t id = groups.rows.front().record.group;
  WatchSpec reclaims;
  reclaims.kind = SHMBW_WATCH_KIND_RECLAIM;
  reclaims.group = id;
  SHMB_TRY_VOID(viewer_.session().watch(reclaims, viewer_.deadline()));
  WatchSpec end;
  end.kind = SHMBW_WATCH_KIND_GROUP;
  end.group = id;
  SHMB_TRY(watch, viewer_.session().watch(end, viewer_.deadline()));
  group_watch_ = watch.id;
  if ((watch.state & SHMBW_WATCH_EVENT_ENDED) == 0) return {};
  SHMB_TRY_VOID(say("ended: group " + options_.group, {{"event", "ended"}, {"group", options_.group}}));
  over_ = true;
  return {};
}

Result<void> Follower::watch_region(const std::string& address, const shmbw_region_ref& region) {
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  spec.region = region;
  auto watch = viewer_.session().watch(spec, viewer_.deadline());
  // It was there a moment ago, and its end is news as well.
  if (!watch && (watch.error().status == Status::not_found || watch.error().status == Status::stale))
    return say_of_region("gone", address, region);
  if (!watch) return std::unexpected(watch.error());
  regions_[watch->id] = address;
  return {};
}

Result<void> Follower::watch_name(const std::string& text) {
  SHMB_TRY(target, resolve(text));
  if (target.id) {
    SHMB_TRY(row, find(viewer_, target));
    const std::string address = address_text(row);
    SHMB_TRY_VOID(say_of_region("present", address, row.record.region));
    return watch_region(address, row.record.region);
  }
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_NAME;
  spec.address = target.address;
  SHMB_TRY(watch, viewer_.session().watch(spec, viewer_.deadline()));
  names_[watch.id] = target.address;
  if ((watch.state & SHMBW_WATCH_EVENT_APPEARED) == 0) return {};
  auto row = find(viewer_, target);
  if (!row && row.error().status == Status::not_found) return {};  // it has gone since
  if (!row) return std::unexpected(row.error());
  SHMB_TRY_VOID(say_of_region("present", target.address, row->record.region));
  return watch_region(target.address, row->record.region);
}

Result<void> Follower::begin() {
  if (!options_.group.empty()) SHMB_TRY_VOID(watch_group());
  for (const std::string& address : options_.addresses) SHMB_TRY_VOID(watch_name(address));
  if (!options_.group.empty() || !options_.addresses.empty()) return {};
  WatchSpec reclaims;
  reclaims.kind = SHMBW_WATCH_KIND_RECLAIM;
  SHMB_TRY_VOID(viewer_.session().watch(reclaims, viewer_.deadline()));
  return {};
}

Result<void> Follower::take(const Event& event) {
  switch (event.kind) {
    case Event::Kind::name_appeared: {
      const auto at = names_.find(event.watch);
      if (at == names_.end()) return {};
      SHMB_TRY_VOID(say_of_region("appeared", at->second, event.region));
      return watch_region(at->second, event.region);
    }
    case Event::Kind::region_ready:
      return say_of_region("ready", regions_[event.watch], event.region);
    case Event::Kind::region_published:
      return say_of_region("published", regions_[event.watch], event.region);
    case Event::Kind::region_gone: {
      const std::string address = regions_[event.watch];
      regions_.erase(event.watch);
      return say_of_region("gone", address, event.region);
    }
    case Event::Kind::reclaim:
      return say(event.text, reclaim_json(event));
    case Event::Kind::group_ended:
      SHMB_TRY_VOID(say("ended: group " + options_.group + ", " + size_text(options_.common, event.bytes) + " freed",
                        {{"event", "ended"}, {"group", options_.group}, {"freed_bytes", event.bytes}}));
      over_ = over_ || options_.addresses.empty();
      return {};
    case Event::Kind::gap:
      return say("gap: " + count_text(event.lost, "event") + " lost, because they were not read in time",
                 {{"event", "gap"}, {"lost", event.lost}});
    default:
      return {};
  }
}

int Follower::follow() {
  while (!over_) {
    auto event = viewer_.session().next_event(client::Deadline::after(client::kForever));
    if (!event) return fail(event.error());
    if (event->kind == Event::Kind::broker_away)
      return fail({Status::session_lost, 0, {}, event->text.empty() ? "the broker has gone" : event->text});
    if (auto taken = take(*event); !taken) return fail(taken.error());
  }
  return kExitOk;
}

int run_watch(const WatchOptions& options) {
  auto viewer = Viewer::connect_for(options.common, options.all_groups);
  if (!viewer) return fail(viewer.error());
  Follower follower(options, *viewer);
  if (auto begun = follower.begin(); !begun) return fail(begun.error());
  return follower.follow();
}

}  // namespace

Command add_watch(CLI::App& app) {
  auto options = std::make_shared<WatchOptions>();
  CLI::App* verb = app.add_subcommand("watch", "Print events as they come: ends of processes, groups and regions");
  verb->add_option("ADDRESS", options->addresses, "Regions to follow by name, also before they are there, or by @ID");
  verb->add_option("--group", options->group, "Reclaims of this group, until it has ended: NAME, UID:NAME or @ID")
      ->type_name("GROUP");
  verb->add_flag("--all-groups", options->all_groups, "Reclaims of all users, by the broker's admin socket");
  verb->add_flag("--jsonl", options->lines_of_json, "A JSON document in each line");
  verb->add_option("-n,--count", options->most, "End after COUNT lines")->type_name("COUNT");
  add_common(*verb, options->common, false, true);
  return {verb, [options] { return run_watch(*options); }};
}

}  // namespace shmb::tools
