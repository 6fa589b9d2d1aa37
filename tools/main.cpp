// SPDX-License-Identifier: Apache-2.0
// The command `shmbroker`: one verb per file. Exit codes: tools/exit_code.hpp.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include "base/text.hpp"
#include "client/shmbroker.h"
#include "spawn/supervisor.hpp"
#include "tools/exit_code.hpp"
#include "tools/tool.hpp"

namespace {

// Usage errors of `run` must not look like the command's own status.
int usage_error(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "run") == 0 ? shmb::spawn::kExitFailed : shmb::tools::kExitUsage;
}

int run(int argc, char** argv) {
  using namespace shmb::tools;
  CLI::App app("Shared memory that goes when its users are gone: who holds what, and the way in and out.", "shmbroker");
  app.set_version_flag("--version", std::string("shmbroker ") + shmb_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 error, 2 usage, 3 no broker, 4 refused, 5 not found, 124 deadline; "
      "`run` gives the command's.");
  const std::string_view first = argc > 1 ? argv[1] : "";
  const Command commands[] = {add_list(app), add_inspect(app), add_status(app), add_put(app),
                              add_cat(app),  add_release(app), add_run(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& problem) {
    const bool known =
        std::ranges::any_of(commands, [&](const Command& command) { return command.app->get_name() == first; });
    const bool unknown = !known && !first.empty() && first.front() != '-';
    complain((unknown ? "there is no command " + shmb::quoted(first) : std::string(problem.what())) +
             " (see `shmbroker --help`)");
    return usage_error(argc, argv);
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {  // out of memory, a broken locale: nothing of ours throws
    shmb::tools::complain(failure.what());
    return argc > 1 && std::strcmp(argv[1], "run") == 0 ? shmb::spawn::kExitFailed : shmb::tools::kExitError;
  }
}
