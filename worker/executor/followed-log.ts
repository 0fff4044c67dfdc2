/** The log of a run that somebody reads while it grows: read now and then, and answered by its new lines. */

export interface FollowedLog {
  /** Called often while the run is under way. */
  look(): void
  /** Returns the part of the whole log that was not sent yet. */
  rest(log: string): string
}

const EVERY_MS = 250

/** `ask` gives the whole log, or rejects when its isolate has ended. */
export function followLog(ask: () => Promise<unknown>, tell: (text: string) => void): FollowedLog {
  let sent = ''
  let sentAt = performance.now()
  let isOver = false

  async function tellNews(): Promise<void> {
    const log = await ask()
    if (isOver || typeof log !== 'string') return
    tell(newLines(sent, log))
    sent = log
    sentAt = performance.now()
  }

  return {
    look() {
      if (performance.now() - sentAt < EVERY_MS) return
      // A busy isolate answers when it comes to rest, so one question at a time is enough.
      sentAt = Number.POSITIVE_INFINITY
      // Its end is reported otherwise.
      tellNews().catch(() => {})
    },
    rest(log) {
      isOver = true
      return newLines(sent, log)
    },
  }
}

/** Returns what a log has more than before; its middle may have been left out meanwhile. */
function newLines(before: string, log: string): string {
  if (log.startsWith(before)) return log.slice(before.length)
  const last = before.slice(before.lastIndexOf('\n', before.length - 2) + 1)
  const at = log.lastIndexOf(last)
  return at < 0 ? log : log.slice(at + last.length)
}
