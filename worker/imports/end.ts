/** Ends parts of imports; that an import is complete with the last of them is recorded. */
import { memberOf } from '../../shared/api/exports/member.ts'
import { recordImport } from '../../shared/api/import-status.ts'
import type { Services } from '../../shared/services.ts'
import {
  endPart,
  type LineFailure,
  replaceManifest,
  type TakenPart,
} from '../../shared/store/import-parts.ts'
import { type ImportInput, type ImportPart, readImport } from '../../shared/store/imports.ts'

/** `failure` tells of an input that could not be read on. */
export async function finishPart(
  services: Services,
  part: TakenPart,
  failure?: LineFailure,
): Promise<void> {
  if (await endPart(services.database, part, failure)) await recordEnd(services, part)
}

/** The inputs that a manifest names take its place. */
export async function finishManifest(
  services: Services,
  part: TakenPart,
  inputs: readonly ImportInput[],
): Promise<void> {
  if (await replaceManifest(services.database, part, inputs)) await recordEnd(services, part)
}

async function recordEnd(services: Services, { job, caller }: TakenPart): Promise<void> {
  const principal = await memberOf(services, caller)
  const found = await readImport(services.database, job)
  if (principal === undefined || found === undefined) return
  const sum = (of: (part: ImportPart) => number) =>
    found.parts.reduce((total, part) => total + of(part), 0)
  await recordImport(services, principal, job, 'completed', {
    inputs: found.parts.length,
    created: sum(({ created }) => created),
    updated: sum(({ updated }) => updated),
    unchanged: sum(({ unchanged }) => unchanged),
    skipped: sum(({ skipped }) => skipped),
    failed: sum(({ failed }) => failed),
  })
}
