/** The manifest of a bulk export elsewhere → the inputs that it names. */
import { importAddress, takesHttp } from '../../../shared/bulk/imports/address.ts'
import type { ImportInput } from '../../../shared/bulk/imports/imports.ts'
import { isImportable } from '../../../shared/bulk/imports/lines.ts'
import type { Config } from '../../../shared/config/config.ts'
import { badRequest } from '../../../shared/errors.ts'
import { parseBody } from '../../../shared/fhir/json.ts'
import { isObject } from '../../../shared/fhir/resource.ts'
import { fetchOutside } from '../../../shared/platform/outbound/fetch-outside.ts'
import { refused, unwanted } from './source.ts'

/** Errors: 400 for what is no manifest, or one whose files take a token; others may be tried again. */
export async function readManifest(
  config: Pick<Config, 'hookTargets'>,
  url: string,
  signal: AbortSignal,
): Promise<readonly ImportInput[]> {
  const headers = { accept: 'application/json' }
  const isSecure = !takesHttp(config)
  const asked = { url, method: 'GET', headers, body: undefined, redirect: 'follow', isSecure }
  const { status, body } = await fetchOutside(asked, config.hookTargets, signal).catch(refused)
  if (status !== 200) throw unwanted(status)
  const manifest = parseBody(body)
  if (!isObject(manifest) || !Array.isArray(manifest.output)) {
    throw badRequest('The answer is no manifest of a bulk export')
  }
  if (manifest.requiresAccessToken === true) {
    throw badRequest('The files of the manifest need an access token, which imports do not have')
  }
  if (Array.isArray(manifest.link) && manifest.link.some(isNext)) {
    throw badRequest('The manifest goes on at another address; name its files as inputs')
  }
  return manifest.output.map((file: unknown) => {
    const { type, url: address } = isObject(file) ? file : {}
    if (typeof type !== 'string' || !isImportable(type)) {
      throw badRequest('The manifest names a file of a type that is not imported')
    }
    const found = typeof address === 'string' ? importAddress(config, address, url) : undefined
    if (found === undefined) {
      throw badRequest('The manifest names a file that is at no https address')
    }
    return { type, url: found.href }
  })
}

/** https://build.fhir.org/ig/HL7/bulk-data/export.html: files are told of in pages. */
function isNext(link: unknown): boolean {
  return isObject(link) && link.relation === 'next'
}
