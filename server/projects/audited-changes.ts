/** Administrative changes with their AuditEvent. */
import type { Principal } from '../../shared/access/principal.ts'
import { recordChange } from '../../shared/request/admin-audit.ts'
import type { Repository, Transaction } from '../../shared/store/repository.ts'

type RecordedChange = Parameters<typeof recordChange>[2]

interface AuditedChange<Result> {
  readonly make: (inside: Transaction) => Promise<Result>
  /** Or a function of the result, which returns undefined if nothing has changed. */
  readonly record: RecordedChange | ((result: Result) => RecordedChange | undefined)
}

/** Makes a change and writes its AuditEvent in one transaction. */
export async function changeAudited<Result>(
  repository: Repository,
  caller: Principal,
  { make, record }: AuditedChange<Result>,
): Promise<Result> {
  return await repository.transaction(async (inside) => {
    const result = await make(inside)
    const change = typeof record === 'function' ? record(result) : record
    if (change !== undefined) await recordChange(inside, caller, change)
    return result
  })
}
