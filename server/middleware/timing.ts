/** `Server-Timing` for project admins who send `X-Debug-Timing: 1`. https://www.w3.org/TR/server-timing/ */
import type { Principal } from '../../shared/access/principal.ts'
import { databaseTimeOf } from '../../shared/platform/postgres/time.ts'
import type { Context } from '../context.ts'

export async function withTiming<T>(
  ctx: Context,
  principal: Principal,
  work: () => Promise<T>,
): Promise<T> {
  if (ctx.get('X-Debug-Timing') !== '1' || !principal.isProjectAdmin) return await work()
  const startedAt = performance.now()
  const { result, ms } = await databaseTimeOf(work)
  const total = performance.now() - startedAt
  ctx.set('Server-Timing', `db;dur=${ms.toFixed(1)}, total;dur=${total.toFixed(1)}`)
  return result
}
