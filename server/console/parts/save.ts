/** Downloads a file with the token, which a plain link lacks. */
import { OperationOutcomeError } from '@medplum/core'
import type { OperationOutcome } from '@medplum/fhirtypes'
import { medplum } from '../client/session.ts'

/** Errors: those of the service. */
export async function saveFrom(path: string, name: string): Promise<void> {
  saveBlob(await download(path), name)
}

/** Errors: those of the service. */
export async function download(path: string): Promise<Blob> {
  const blob = await medplum.download(path)
  const isRefused = blob.type.startsWith('application/fhir+json') && blob.size < 100_000
  if (!isRefused) return blob
  const body: unknown = JSON.parse(await blob.text())
  const isOutcome = typeof body === 'object' && body !== null && 'resourceType' in body
  if (isOutcome && body.resourceType === 'OperationOutcome') {
    throw new OperationOutcomeError(body as OperationOutcome)
  }
  return blob
}

export function saveText(text: string, name: string, type: string): void {
  saveBlob(new Blob([text], { type }), name)
}

export function saveBlob(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob)
  Object.assign(document.createElement('a'), { href: url, download: name }).click()
  URL.revokeObjectURL(url)
}
