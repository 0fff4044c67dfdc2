/** Real resources for benches: the Synthea patients of test/data. */
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { gunzipSync } from 'node:zlib'
import type { Resource } from '../../shared/fhir/resource.ts'

const folder = path.join(import.meta.dirname, '..', '..', 'test', 'data', 'synthea')

/** The resources of all bundles; references between them have become literal ones. */
export async function syntheaResources(): Promise<Resource[]> {
  const files = (await readdir(folder)).filter((name) => /^patient-.*\.json\.gz$/.test(name))
  const bundles = await Promise.all(files.map((name) => readFile(path.join(folder, name))))
  return bundles.flatMap((zipped) => {
    const text = gunzipSync(zipped).toString()
    const { entry } = JSON.parse(text) as { entry: { fullUrl: string; resource: Resource }[] }
    const types = new Map(entry.map((item) => [item.fullUrl, item.resource.resourceType]))
    const literal = text.replaceAll(
      /"(urn:uuid:([0-9a-f-]{36}))"/g,
      (_whole, url: string, id: string) => `"${types.get(url) ?? 'Patient'}/${id}"`,
    )
    return (JSON.parse(literal) as { entry: { resource: Resource }[] }).entry.map(
      ({ resource }) => resource,
    )
  })
}
