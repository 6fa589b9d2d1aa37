// SPDX-License-Identifier: Apache-2.0
// See completion.hpp. The type of an option's value decides where candidates come from: GROUP and ADDRESS from the
// running broker (completion never starts one), OBJECT from `list --all`, PID from /proc, PATH and FILE from the file
// system.
#include "tools/completion.hpp"

#include <CLI/CLI.hpp>
#include <cctype>
#include <vector>

namespace shmb::tools {
namespace {

enum class Shell { bash, zsh, fish };

// A shell command that prints candidates, one a line. Empty: there are none for this type.
std::string candidates(const std::string& type) {
  if (type == "GROUP") return R"x(shmbroker list --json 2>/dev/null | sed -n 's/^      "group": "\(.*\)",$/\1/p')x";
  if (type == "ADDRESS") return R"x(shmbroker list --json 2>/dev/null | sed -n 's/^      "address": "\(.*\)",$/\1/p')x";
  if (type == "OBJECT") return "shmbroker list --all -q 2>/dev/null";
  if (type == "PID") return "ls /proc 2>/dev/null | grep '^[0-9]'";
  if (type == "SHELL") return "printf '%s\\n' bash zsh fish";
  if (type == "DURATION") return "printf '%s\\n' 0 10s 10m 1h 7d";
  return "";
}

bool is_file(const std::string& type) { return type == "PATH" || type == "FILE"; }

struct Option {
  std::vector<std::string> words;  // "--group", "-q"
  std::string help, type;          // type is empty for a flag
};

struct Verb {
  std::string name, help;
  std::vector<Option> options;
  std::string takes;  // the type of its argument, or empty
};

std::string type_of(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  const std::string type = option.get_type_name();
  return type.substr(0, type.find_first_of(": "));
}

// "address" and "group" are types by their own names.
std::string kind_of_name(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<Verb> verbs_of(const CLI::App& app) {
  std::vector<Verb> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Verb verb{.name = sub->get_name(), .help = sub->get_description()};
    for (const CLI::Option* it : sub->get_options()) {
      Option option{.help = it->get_description(), .type = type_of(*it)};
      for (const std::string& name : it->get_lnames()) option.words.push_back("--" + name);
      for (const std::string& name : it->get_snames()) option.words.push_back("-" + name);
      if (!option.words.empty()) {
        if (option.type == "TEXT") option.type = kind_of_name(option.words.front().substr(2));
        verb.options.push_back(std::move(option));
      } else if (verb.takes.empty()) {
        verb.takes = kind_of_name(it->get_name());
      }
    }
    out.push_back(std::move(verb));
  }
  return out;
}

std::string joined(const std::vector<std::string>& words, const char* gap) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : gap) + word;
  return out;
}

// In single quotes of a shell.
std::string quoted_for_shell(std::string text) {
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

std::string bash_action(const std::string& type) {
  if (is_file(type)) return "mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";
  const std::string command = candidates(type);
  return command.empty() ? "COMPREPLY=()"
                         : "mapfile -t COMPREPLY < <(compgen -W \"$(" + command + ")\" -- \"$current\")";
}

std::string bash(const std::vector<Verb>& verbs) {
  std::string names, cases;
  for (const Verb& verb : verbs) {
    names += verb.name + " ";
    std::vector<std::string> words;
    cases += "    " + verb.name + ")\n      case \"$previous\" in\n";
    for (const Option& option : verb.options) {
      words.insert(words.end(), option.words.begin(), option.words.end());
      if (!option.type.empty())
        cases += "        " + joined(option.words, "|") + ") " + bash_action(option.type) + "; return ;;\n";
    }
    cases += "      esac\n      case \"$current\" in\n        -*) mapfile -t COMPREPLY < <(compgen -W '" +
             joined(words, " ") + "' -- \"$current\") ;;\n";
    if (!verb.takes.empty()) cases += "        *) " + bash_action(verb.takes) + " ;;\n";
    cases += "      esac ;;\n";
  }
  return "# bash completion of shmbroker(1), made by `shmbroker completion bash`.\n"
         "_shmbroker() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]} i\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         names +
         "--help --version' -- \"$current\")\n"
         "    return\n"
         "  fi\n"
         "  if [ \"$verb\" = run ]; then  # what follows -- is completed as a command line of its own\n"
         "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
         "      if [ \"${COMP_WORDS[i]}\" = -- ]; then\n"
         "        if declare -F _command_offset > /dev/null; then _command_offset $((i + 1)); fi\n"
         "        return\n"
         "      fi\n"
         "    done\n"
         "  fi\n"
         "  case \"$verb\" in\n" +
         cases + "  esac\n}\ncomplete -F _shmbroker shmbroker\n";
}

// In a description of zsh's _arguments a bracket would end the text, and a colon would begin the next part.
std::string for_zsh(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const std::string& type) {
  if (is_file(type)) return "_files";
  const std::string command = candidates(type);
  return command.empty() ? " " : "{compadd -- ${(f)\"$(" + command + ")\"}}";
}

std::string zsh(const std::vector<Verb>& verbs) {
  std::string list, cases;
  for (const Verb& verb : verbs) {
    list += "    " + quoted_for_shell(verb.name + ":" + for_zsh(verb.help)) + "\n";
    cases += "    " + verb.name + ")\n      _arguments";
    for (const Option& option : verb.options)
      for (const std::string& word : option.words)
        cases += " \\\n        " +
                 quoted_for_shell(word + "[" + for_zsh(option.help) + "]" +
                                  (option.type.empty() ? "" : ":" + option.type + ":" + zsh_action(option.type)));
    if (!verb.takes.empty())
      cases += " \\\n        " + quoted_for_shell("*:" + verb.takes + ":" + zsh_action(verb.takes));
    cases += " ;;\n";
  }
  return "#compdef shmbroker\n# zsh completion of shmbroker(1), made by `shmbroker completion zsh`.\n_shmbroker() {\n  "
         "local -a verbs\n"
         "  verbs=(\n" +
         list +
         "  )\n  if (( CURRENT == 2 )); then\n    _describe verb verbs\n    return\n  fi\n"
         "  local verb=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $verb in\n" +
         cases + "  esac\n}\n_shmbroker \"$@\"\n";
}

std::string fish(const std::vector<Verb>& verbs) {
  std::string out =
      "# fish completion of shmbroker(1), made by `shmbroker completion fish`.\ncomplete -c shmbroker -f\n";
  for (const Verb& verb : verbs) {
    out +=
        "complete -c shmbroker -n __fish_use_subcommand -a " + verb.name + " -d " + quoted_for_shell(verb.help) + "\n";
    const std::string when = "complete -c shmbroker -n '__fish_seen_subcommand_from " + verb.name + "'";
    const auto values = [](const std::string& type) {
      const std::string command = candidates(type);
      return is_file(type)     ? std::string(" -F")
             : command.empty() ? std::string()
                               : " -a " + quoted_for_shell("(" + command + ")");
    };
    for (const Option& option : verb.options) {
      out += when;
      for (const std::string& word : option.words)
        out += word.starts_with("--") ? " -l " + word.substr(2) : " -s " + word.substr(1);
      if (!option.type.empty()) out += " -r" + values(option.type);
      out += " -d " + quoted_for_shell(option.help) + "\n";
    }
    if (!verb.takes.empty() && !values(verb.takes).empty()) out += when + values(verb.takes) + "\n";
  }
  return out;
}

}  // namespace

Result<std::string> completion(const CLI::App& app, std::string_view shell) {
  const auto verbs = verbs_of(app);
  if (shell == "bash") return bash(verbs);
  if (shell == "zsh") return zsh(verbs);
  if (shell == "fish") return fish(verbs);
  return error(Status::invalid, "there is no completion for '" + std::string(shell) + "': bash, zsh or fish");
}

}  // namespace shmb::tools
