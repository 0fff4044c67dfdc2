/** Ends parts of imports; that an import is complete with the last of them is recorded. */
import { memberOf } from '../../../shared/bulk/exports/member.ts'
import {
  type ImportInput,
  type ImportPart,
  readImport,
} from '../../../shared/bulk/imports/imports.ts'
import {
  endPart,
  type LineFailure,
  replaceManifest,
  type TakenPart,
} from '../../../shared/bulk/imports/parts.ts'
import { recordImport } from '../../../shared/bulk/imports/status.ts'
import type { Connection } from '../../../shared/platform/postgres/statement.ts'
import type { Services } from '../../../shared/services.ts'

/** `failure` tells of an input that could not be read on. */
export function finishPart(
  services: Services,
  part: TakenPart,
  failure?: LineFailure,
): Promise<void> {
  return finish(services, part, (connection) => endPart(connection, part, failure))
}

/** The inputs that a manifest names take its place. */
export function finishManifest(
  services: Services,
  part: TakenPart,
  inputs: readonly ImportInput[],
): Promise<void> {
  return finish(services, part, (connection) => replaceManifest(connection, part, inputs))
}

/** The record is there with the end, or neither is. */
async function finish(
  services: Services,
  { job, caller }: TakenPart,
  end: (connection: Connection) => Promise<boolean>,
): Promise<void> {
  const principal = await memberOf(services, caller)
  await services.repository.transaction(async (transaction) => {
    const isEnd = await transaction.beside(end)
    if (!isEnd || principal === undefined) return
    const found = await transaction.beside((connection) => readImport(connection, job))
    const sum = (of: (part: ImportPart) => number) =>
      (found?.parts ?? []).reduce((total, part) => total + of(part), 0)
    await recordImport({ repository: transaction }, principal, job, 'completed', {
      inputs: found?.parts.length ?? 0,
      created: sum(({ created }) => created),
      updated: sum(({ updated }) => updated),
      unchanged: sum(({ unchanged }) => unchanged),
      skipped: sum(({ skipped }) => skipped),
      failed: sum(({ failed }) => failed),
    })
  })
}
