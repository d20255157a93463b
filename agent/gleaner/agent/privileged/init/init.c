/*
 * gleaner-init END PROGRAM [ARGUMENT ...]: process 1 of a job's container.
 *
 * It runs the program as its child, which Linux gives all signals and exit codes that a program has elsewhere; process 1
 * would lack some. It passes on the signals that it gets, waits for orphans, and exits as a shell would: with the
 * program's code, or with 128 and the number of the signal that ended the program. A line in the file END tells these
 * two apart: "exited CODE", "killed SIGNAL", or "cannot run PROGRAM: why". All this happens with the job's own rights, so
 * a job can forge the line; only the job's agent reads it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *end_path;

/* Write the line into a new file, whatever the job has put there, and exit. On a full disk the line is lost. */
static void end(int code, const char *format, ...) {
    va_list arguments;
    unlink(end_path);
    int file = open(end_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) {
        va_start(arguments, format);
        vdprintf(file, format, arguments);
        va_end(arguments);
    }
    exit(code);
}

int main(int count, char **words) {
    sigset_t all, before;
    int failed[2] = {-1, -1}, status, number = 0; /* closing -1 does nothing: without a pipe, 0 stays open */

    if (count < 3) {
        fprintf(stderr, "usage: gleaner-init END PROGRAM [ARGUMENT ...]\n");
        return 2;
    }
    end_path = words[1];
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t ended, program = pipe2(failed, O_CLOEXEC) == 0 ? fork() : -1;
    if (program == 0) {
        setsid(); /* it leads a session, as a container's first process does */
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(words[2], words + 2);
        number = errno;
        _exit(write(failed[1], &number, sizeof number) < 0);
    }
    if (program < 0)
        number = errno;
    close(failed[1]);
    if (program < 0 || read(failed[0], &number, sizeof number) > 0) {
        fprintf(stderr, "gleaner: cannot run %s: %s\n", words[2], strerror(number));
        end(number == ENOENT ? 127 : 126, "cannot run %s: %s\n", words[2], strerror(number));
    }
    close(failed[0]);
    for (;;) {
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
            if (ended == program && WIFEXITED(status))
                end(WEXITSTATUS(status), "exited %d\n", WEXITSTATUS(status));
            else if (ended == program)
                end(128 + WTERMSIG(status), "killed %d\n", WTERMSIG(status));
        number = sigwaitinfo(&all, NULL);
        if (number > 0 && number != SIGCHLD)
            kill(program, number);
    }
}
