// SPDX-License-Identifier: Apache-2.0
// The command `shmbroker`: one verb per file. Exit codes: tools/exit_code.hpp.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "base/text.hpp"
#include "client/face/shmbroker.h"
#include "spawn/ranks/supervisor.hpp"
#include "tools/completion.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/tool.hpp"

namespace {

// Says what is wrong on the command line, and where the help is: the verb's own help, if there is a verb.
std::string usage_sentence(const CLI::App& app, int argc, char** argv, const CLI::ParseError& problem) {
  if (argc < 2 || *argv[1] == '-') return std::string(problem.what()) + " (see `shmbroker --help`)";
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == argv[1])
      return std::string(problem.what()) + " (see `shmbroker " + verb->get_name() + " --help`)";
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  return "there is no verb " + shmb::quoted(argv[1]) + ": " + verbs + " (see `shmbroker --help`)";
}

// Usage errors of `run` must differ from the command's own status.
int usage_error(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "run") == 0 ? shmb::spawn::kExitFailed : shmb::tools::kExitUsage;
}

// In a terminal of another locale the bytes of UTF-8 would be other characters, among them control characters. Without
// a terminal, names stay as they are.
bool shows_ascii_alone() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      const std::string locale = value;
      return locale.find("UTF-8") == locale.npos && locale.find("utf8") == locale.npos &&
             locale.find("utf-8") == locale.npos && locale.find("UTF8") == locale.npos;
    }
  return true;  // the locale "C"
}

int run(int argc, char** argv) {
  using namespace shmb::tools;
  print_ascii_alone(shows_ascii_alone() && (is_terminal(STDOUT_FILENO) || is_terminal(STDERR_FILENO)));
  CLI::App app("Shared memory that goes when its users are gone: who holds what, and the way in and out.", "shmbroker");
  app.set_version_flag("--version", std::string("shmbroker ") + shmb_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 error, 2 usage, 3 no broker, 4 refused, 5 not found, 6 findings, "
      "7 could not see all, 124 deadline; "
      "`run` gives the command's.");
  const Command commands[] = {add_list(app),    add_inspect(app), add_status(app),  add_put(app),    add_cat(app),
                              add_release(app), add_limit(app),   add_metrics(app), add_events(app), add_watch(app),
                              add_run(app),     add_leaks(app),   add_gc(app),      add_map(app),    add_doctor(app)};
  std::string shell;
  CLI::App* completes = app.add_subcommand("completion", "Print the completion script of a shell");
  completes->add_option("SHELL", shell, "bash, zsh or fish")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& problem) {
    complain(usage_sentence(app, argc, argv, problem));
    return usage_error(argc, argv);
  }
  if (completes->parsed()) {
    auto script = completion(app, shell);
    if (!script) return fail(script.error());
    return print(*script) ? kExitOk : kExitError;
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {  // out of memory, a broken locale: the tool's own code throws nothing
    shmb::tools::complain(failure.what());
    return argc > 1 && std::strcmp(argv[1], "run") == 0 ? shmb::spawn::kExitFailed : shmb::tools::kExitError;
  }
}
