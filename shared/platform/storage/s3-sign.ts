/** Addresses of objects of a bucket that are read without credentials, for a while. */
import { GetObjectCommand, type GetObjectCommandInput, type S3Client } from '@aws-sdk/client-s3'
import { SignatureV4 } from '@smithy/signature-v4'

type HttpRequest = Parameters<SignatureV4['presign']>[0]

/** https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html */
export async function signedAddress(
  client: S3Client,
  input: GetObjectCommandInput,
  seconds: number,
): Promise<string> {
  const { region, credentials, sha256 } = client.config
  const signer = new SignatureV4({
    service: 's3',
    region,
    credentials,
    sha256,
    uriEscapePath: false,
  })
  const command = new GetObjectCommand(input)
  const made = Promise.withResolvers<string>()
  command.middlewareStack.add(
    () =>
      async ({ request }) => {
        // The client is one of HTTP: it makes requests of no other kind.
        const unsigned = request as HttpRequest
        const headers = {
          host: unsigned.headers.host ?? unsigned.hostname,
          'X-Amz-Content-Sha256': 'UNSIGNED-PAYLOAD',
        }
        const signed = await signer.presign({ ...unsigned, headers }, { expiresIn: seconds })
        made.resolve(addressOf(signed))
        return { response: {}, output: { $metadata: {} } }
      },
    { step: 'finalizeRequest', priority: 'high' },
  )
  await client.send(command)
  return made.promise
}

function addressOf({ protocol, hostname, port, path, query = {} }: HttpRequest): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value ?? ''].flat().map((one) => `${encodeURIComponent(name)}=${encodeURIComponent(one)}`),
  )
  return `${protocol}//${hostname}${port === undefined ? '' : `:${port}`}${path}?${pairs.join('&')}`
}
