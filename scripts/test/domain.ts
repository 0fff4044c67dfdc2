/**
 * Stands for the package by which tap finds the test that an uncaught error belongs to. The package watches each
 * promise of the process for that, a tenth of its work; Node's own storage of what belongs together is for nothing.
 */
import { AsyncLocalStorage, type AsyncResource, executionAsyncResource } from 'node:async_hooks'

type OnError = (error: unknown, kind: string) => void

const entered = new AsyncLocalStorage<Domain>()
/** They have no test around them, and catch what no test does. */
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
    // A test that has ended hands what comes late to those around it.
  }
}

function hand(error: unknown, kind: string): void {
  const domain = entered.getStore() ?? roots.at(-1)
  domain?.onerror(error, kind)
}
