/** The manifest of a bulk export elsewhere → the inputs that it names. */
import { isImportable } from '../../shared/api/import-lines.ts'
import type { Config } from '../../shared/config.ts'
import { badRequest } from '../../shared/errors.ts'
import { fetchOutside } from '../../shared/fetch-outside.ts'
import { parseBody } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { ImportInput } from '../../shared/store/imports.ts'
import { refused } from './source.ts'

/** Errors: 400 for what is no manifest, or one whose files take a token; others may be tried again. */
export async function readManifest(
  { hookTargets }: Pick<Config, 'hookTargets'>,
  url: string,
  signal: AbortSignal,
): Promise<readonly ImportInput[]> {
  const headers = { accept: 'application/json' }
  const asked = { url, method: 'GET', headers, body: undefined, redirect: 'follow' }
  const { status, body } = await fetchOutside(asked, hookTargets, signal).catch(refused)
  if (status >= 500 || status === 429) throw new Error(`The manifest was answered with ${status}`)
  if (status !== 200) throw badRequest(`The manifest was answered with status ${status}`)
  const manifest = parseBody(body)
  if (!isObject(manifest) || !Array.isArray(manifest.output)) {
    throw badRequest('The answer is no manifest of a bulk export')
  }
  if (manifest.requiresAccessToken === true) {
    throw badRequest('The files of the manifest need an access token, which imports do not have')
  }
  return manifest.output.map((file: unknown) => {
    const { type, url: address } = isObject(file) ? file : {}
    if (typeof type !== 'string' || !isImportable(type)) {
      throw badRequest('The manifest names a file of a type that is not imported')
    }
    if (typeof address !== 'string' || !URL.canParse(address, url)) {
      throw badRequest('The manifest names a file without an address')
    }
    return { type, url: new URL(address, url).href }
  })
}
