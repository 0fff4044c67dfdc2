/**
 * Replaces tap's domain package, which assigns uncaught errors to tests and watches each promise for that; Node's
 * AsyncLocalStorage is cheaper.
 */
import { AsyncLocalStorage, type AsyncResource, executionAsyncResource } from 'node:async_hooks'

type OnError = (error: unknown, kind: string) => void

const entered = new AsyncLocalStorage<Domain>()
/** Top-level domains catch errors outside tests. */
const roots: Domain[] = []

export class Domain {
  readonly onerror: OnError

  constructor(onerror: OnError) {
    this.onerror = onerror
    const scope = executionAsyncResource() as Partial<AsyncResource>
    const run = scope.runInAsyncScope
    if (run === undefined) {
      if (roots.length === 0) process.on('uncaughtException', hand)
      roots.push(this)
      return
    }
    scope.runInAsyncScope = (work, self, ...args) => {
      const bound = work.bind(self as ThisParameterType<typeof work>)
      return run.call(scope, () => entered.run(this, bound, ...args)) as ReturnType<typeof work>
    }
  }

  destroy(): void {
    // Late errors of an ended test go to its parents.
  }
}

function hand(error: unknown, kind: string): void {
  const domain = entered.getStore() ?? roots.at(-1)
  domain?.onerror(error, kind)
}
