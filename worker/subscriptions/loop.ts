/** Work that is done again whenever somebody asks for it, at least every so often, never twice at a time. */

export interface Loop {
  wake(): void
  wakeIn(ms: number): void
  /** Resolves when the work in hand has ended. */
  stop(): Promise<void>
}

/** `work` returns whether there is more to do at once. Its failures are logged and forgotten. */
export function createLoop(
  everyMs: number,
  work: () => Promise<boolean>,
  failed: (error: unknown) => void,
): Loop {
  const timers = new Set<NodeJS.Timeout>()
  let running: Promise<void> | undefined
  let isAsked = false
  let isStopped = false

  async function run(): Promise<void> {
    while (isAsked && !isStopped) {
      isAsked = false
      try {
        if (await work()) isAsked = true
      } catch (error) {
        failed(error)
      }
    }
    running = undefined
  }

  const wake = () => {
    isAsked = true
    if (!isStopped) running ??= run()
  }
  const timer = setInterval(wake, everyMs)
  wake()

  return {
    wake,
    wakeIn(ms) {
      const once = setTimeout(() => {
        timers.delete(once)
        wake()
      }, ms)
      timers.add(once)
    },
    async stop() {
      isStopped = true
      clearInterval(timer)
      for (const once of timers) clearTimeout(once)
      await running
    },
  }
}
