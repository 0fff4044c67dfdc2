/** A request that comes along with hundreds of others waits for its turn of the event loop. */
import { ownTurn } from '../../shared/platform/event-loop-turns.ts'
import type { Middleware } from '../context.ts'

export const turns: Middleware = async (_ctx, next) => {
  await ownTurn()
  await next()
}
