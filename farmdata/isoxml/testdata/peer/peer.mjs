// Prints what the npm package isoxml reads in the logs of a TaskData archive, one
// line of JSON for each record, and how long it took to decode them:
// node peer.mjs FILE
import fs from 'node:fs';
import isoxml from 'isoxml';

const manager = new isoxml.ISOXMLManager({version: 4, rootFolder: ''});
await manager.parseISOXMLFile(fs.readFileSync(process.argv[2]), 'application/zip');
const logs = (manager.rootElement.attributes.Task || []).flatMap(task => task.attributes.TimeLog || []);
const out = [];
for (const log of logs) {
  for (const record of log.parseBinaryFile().timeLogs) {
    const p = record.position || {};
    out.push(JSON.stringify({
      log: log.attributes.Filename, time: record.time.getTime(), north: p.PositionNorth, east: p.PositionEast, up: p.PositionUp,
      status: p.PositionStatus, pdop: p.PDOP, hdop: p.HDOP, satellites: p.NumberOfSatellites, utcTime: p.GpsUtcTime, utcDate: p.GpsUtcDate,
      valid: record.isValidPosition, values: record.values,
    }));
  }
}
// The best of several runs, so that the compiler has seen the code.
let best = Infinity, values = 0;
for (let run = 0; run < 7; run++) {
  values = 0;
  for (const log of logs) log.parsedTimeLog = null;
  const start = process.hrtime.bigint();
  const parsed = logs.map(log => log.parseBinaryFile());
  best = Math.min(best, Number(process.hrtime.bigint() - start));
  for (const log of parsed) for (const record of log.timeLogs) values += Object.keys(record.values).length;
}
out.push(JSON.stringify({nanoseconds: best, decoded: values}));
fs.writeFileSync(1, out.join('\n') + '\n');
