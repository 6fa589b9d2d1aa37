// SPDX-License-Identifier: Apache-2.0
// Lines to standard error, for the journal or a log file. A lost line never stops the broker and never makes it wait: a
// line that cannot be written at once is counted and dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shmb::daemon::log {

// syslog(3) numbers.
enum Priority : int { error = 3, warning = 4, notice = 5, info = 6, debug = 7 };

// The head of a line. A collector (the journal) adds time, program and pid itself, and reads a
// priority. A private broker writes its own log file, so it adds them itself: several brokers write to that file one
// after another.
enum class Form { collector, file };
void set_form(Form wanted);        // collector until it is called
void set_threshold(int priority);  // lines above it are not written
bool enabled(int priority);
// Writes one line. Control bytes are shown as \xNN, because parts of the text may come from a peer.
void line(int priority, std::string_view text);
// Logs why the broker ends. The line holds the program's name in both forms.
void failure(const std::string& text);
// For faults that a peer can cause at will: at most a few lines a second. The rest is counted and reported once later.
void peer_fault(std::string_view text);

}  // namespace shmb::daemon::log
