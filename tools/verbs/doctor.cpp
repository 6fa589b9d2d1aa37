// SPDX-License-Identifier: Apache-2.0
// `shmbroker doctor`: what prevents shared memory on this host, and the command that changes it. It starts no broker
// and changes nothing.
#include "tools/host/doctor.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/host_view.hpp"
#include "tools/printable.hpp"
#include "tools/session.hpp"
#include "tools/table.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

using host::Check;
using host::Level;

// The broker's own two lines.
std::vector<Check> broker_checks(const Common& common) {
  auto viewer = Viewer::connect(common);
  if (!viewer) {
    const bool absent = viewer.error().status == Status::no_broker;
    return {
        {"daemon", absent ? Level::info : Level::warning,
         absent ? "none runs; the first program that needs one starts a private broker" : viewer.error().sentence, ""},
        {"access", Level::info, "without a broker there are no limits to show", ""}};
  }
  auto status = client::broker_status(viewer->session(), viewer->deadline());
  if (!status) return {{"daemon", Level::warning, status.error().sentence, ""}};
  const shmbw_status_reply& facts = status->record;
  return {
      {"daemon", Level::ok,
       mode_text(facts.mode) + " broker " + status->version + ", " + engine_text(facts.engine) + ", socket " +
           viewer->facts().socket,
       ""},
      {"access", Level::ok,
       size_text(common, facts.bytes) + " of " + size_text(common, facts.bytes_limit) + " in use at the broker", ""}};
}

int run_doctor(const Common& common) {
  auto inventory = look_at_host(kStaleAfter);
  if (!inventory) return fail(inventory.error());
  std::vector<Check> checks = broker_checks(common);
  const auto examined = host::examine(*inventory, host::probe());
  checks.insert(checks.end(), examined.begin(), examined.end());
  const auto count = [&](Level level) {
    return static_cast<std::size_t>(std::ranges::count(checks, level, &Check::level));
  };
  const std::size_t warnings = count(Level::warning), errors = count(Level::error);
  std::string text;
  if (common.json) {
    Json json = host_document("doctor", *inventory);
    json["warnings"] = warnings;
    json["errors"] = errors;
    json["checks"] = Json::array();
    for (const Check& check : checks)
      json["checks"].push_back({{"name", check.name},
                                {"verdict", host::level_text(check.level)},
                                {"reason", check.reason},
                                {"advice", check.advice.empty() ? Json(nullptr) : Json(check.advice)}});
    text = dump(json);
  } else {
    std::size_t width = 0;
    for (const Check& check : checks) width = std::max(width, check.name.size());
    const bool coloured = colour(STDOUT_FILENO);
    const std::size_t room = look_of(STDOUT_FILENO).columns;
    for (const Check& check : checks) {
      std::string level = host::level_text(check.level);
      level.resize(7, ' ');
      if (coloured && (check.level == Level::warning || check.level == Level::error))
        level = (check.level == Level::error ? "\x1b[31m" : "\x1b[33m") + level + "\x1b[0m";
      const std::string margin(width + 11, ' ');
      text += check.name + std::string(width - check.name.size() + 2, ' ') + level + "  " +
              wrapped(printable(check.reason), margin, room) + "\n";
      if (!check.advice.empty())
        text += std::string(width + 2, ' ') + "    ->   " + wrapped(printable(check.advice), margin, room) + "\n";
    }
    text += count_text(warnings, "warning") + ", " + count_text(errors, "error") +
            ". For bug reports: shmbroker doctor --json\n";
  }
  if (!print(text)) return kExitError;
  if (warnings + errors != 0) return kExitFindings;
  return inventory->saw_all() ? kExitOk : kExitUnseen;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  auto common = std::make_shared<Common>();
  CLI::App* verb =
      app.add_subcommand("doctor", "Check what on this host stands in the way of shared memory; needs no broker");
  add_common(*verb, *common, true, true);
  return {verb, [common] { return run_doctor(*common); }};
}

}  // namespace shmb::tools
